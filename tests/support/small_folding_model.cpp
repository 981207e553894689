#include "support/small_folding_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <memory>
#include <vector>

#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/models/folding/kept_inputs.h"
#include "colossal/models/folding/structure_module.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/pair_layers.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::test {

void SmallFoldingKeys::fields(Fields& f) {
  f.integer("single", single, "features", "features of a residue", 1);
  f.integer("pair", pair, "features", "features of a pair", 1);
  f.integer("points", points, "points", "LDDT values of a residue", 1, 37);
  f.flag("predicts_errors", predicts_errors, "predict errors of aligned points");
  f.flag("reads_alignments", reads_alignments, "read rows of alignments");
}

namespace {

constexpr int kSingle = 0, kPair = 1, kStructure = 2, kFrames = 3, kAngles = 4;  // states
constexpr int64_t kTypes = 21, kDistance = 4, kStructureLayers = 2, kBins = 50, kErrors = 64, kRowFeatures = 49;
constexpr double kDeviation = .3;

models::StructureSizes structure_sizes(const SmallFoldingKeys& keys) {
  return {
      .points =
          {.single = keys.single, .pair = keys.pair, .heads = 2, .head_dim = 4, .query_points = 2, .value_points = 3},
      .layers = kStructureLayers,
      .angle_hidden = 7,
      .dropout = 0};
}

at::Tensor one_hot(const at::Tensor& index, int64_t size, const at::Tensor& like) {
  return index.unsqueeze(-1).eq(at::arange(size, index.options())).to(like.scalar_type());
}

/// Makes s and z of types, relative places and the fields of the pass before.
class SmallEmbedding {
 public:
  SmallEmbedding(const SmallFoldingKeys& keys, nn::Layers& make)
      : types_(make.dense("types", kTypes, keys.single, {.deviation = kDeviation})),
        places_(make.dense("places", 2 * kDistance + 1, keys.pair, {.deviation = kDeviation})),
        distances_(make.dense("distances", 1, keys.pair, {.deviation = kDeviation})),
        single_norm_(make.layer_norm("single_norm", keys.single, {})),
        pair_norm_(make.layer_norm("pair_norm", keys.pair, {})) {
    if (keys.reads_alignments) rows_ = make.dense("rows", kRowFeatures, keys.single, {.deviation = kDeviation});
  }

  void forward(models::States& states, const tensor::Batch& batch) const {
    const at::Tensor &mask = batch.at("seq_mask"), &before = batch.at("recycled_pair"),
                     index = batch.at("residue_index"), beta = batch.at("recycled_beta");
    const at::Tensor s = types_->forward(one_hot(batch.at("aatype"), kTypes, mask));
    states[kSingle] = s + single_norm_->forward(batch.at("recycled_single"));
    if (rows_) states[kSingle] = states[kSingle] + at::tanh(rows_->forward(mean_row(batch)));
    at::Tensor z = pair_norm_->forward(before);
    if (!at::GradMode::is_enabled()) z = before.copy_(z);  // the field becomes z
    const at::Tensor offset = (index.unsqueeze(2) - index.unsqueeze(1)).clamp(-kDistance, kDistance) + kDistance;
    const at::Tensor far = (beta.unsqueeze(2) - beta.unsqueeze(1)).square().sum(-1, true).log1p();
    const at::Tensor added =
        places_->forward(one_hot(offset, 2 * kDistance + 1, mask)) + distances_->forward(far.to(mask.scalar_type()));
    states[kPair] = at::GradMode::is_enabled() ? z + added : z.add_(added);
  }

 private:
  static at::Tensor mean_row(const tensor::Batch& batch) {
    const at::Tensor mask = batch.at("msa_mask").unsqueeze(-1);
    return (batch.at("msa_feat") * mask).sum(1) / mask.sum(1).clamp_min(1);
  }

  std::unique_ptr<nn::Dense> types_, places_, distances_, rows_;  // rows_: null without alignments
  std::unique_ptr<nn::Norm> single_norm_, pair_norm_;
};

/// Adds to z a triangle layer and the residues of each pair, and to s the pairs of each residue.
class SmallBlock {
 public:
  SmallBlock(const std::string& name, const SmallFoldingKeys& keys, nn::Layers& make)
      : triangle_(make, name + ".triangle", keys.pair, {.hidden = keys.pair}),
        to_pair_(make.dense(name + ".to_pair", keys.single, keys.pair, {.deviation = kDeviation})),
        to_single_(make.dense(name + ".to_single", keys.pair, keys.single, {.deviation = kDeviation})) {}

  void forward(models::States& states, const tensor::Batch& batch) const {
    const at::Tensor& mask = batch.at("seq_mask");
    const at::Tensor pairs = mask.unsqueeze(2) * mask.unsqueeze(1);
    models::copy_kept_inputs({&states[kSingle], &states[kPair]});
    at::Tensor& z = states[kPair];
    const at::Tensor residues = to_pair_->forward(states[kSingle]);
    if (at::GradMode::is_enabled()) {
      z = z + residues.unsqueeze(2) + residues.unsqueeze(1);
      z = z + triangle_.forward(z, pairs);
    } else {
      z.add_(residues.unsqueeze(2)).add_(residues.unsqueeze(1));
      triangle_.add_to(z, pairs);
    }
    const at::Tensor means = at::matmul(mask.unsqueeze(1).unsqueeze(1), z).squeeze(2) / mask.sum(1).reshape({-1, 1, 1});
    states[kSingle] = states[kSingle] + at::tanh(to_single_->forward(means));
  }

 private:
  nn::TriangleMultiplication triangle_;
  std::unique_ptr<nn::Dense> to_pair_, to_single_;
};

void fold_states(const models::StructureModule& structure, models::States& states, const nn::ForwardContext& step) {
  const models::StackedLayers layers =
      stacked(structure.forward(states[kSingle], states[kPair], step.batch->at("seq_mask"), step));
  states[kStructure] = layers.structure;
  states[kFrames] = layers.frames;
  states[kAngles] = layers.angles;
}

std::vector<models::State> states_of(const SmallFoldingKeys& keys, at::ScalarType dtype) {
  using tensor::Dim;
  const at::ScalarType exact = at::promote_types(dtype, at::kFloat);
  const auto state = [](const char* name, const std::vector<int64_t>& pattern, std::optional<at::ScalarType> type) {
    // in a pattern, 0 stands for the number of residues
    std::vector<Dim> dims(pattern.size() + 1, Dim::Other);
    dims[0] = Dim::Row;
    return models::State{.name = name,
                         .dims = dims,
                         .sizes =
                             [pattern](const nn::ForwardContext& step, int64_t) {
                               const at::Tensor& types = step.batch->at("aatype");
                               std::vector<int64_t> sizes{types.size(0)};
                               for (const int64_t size : pattern) sizes.push_back(size == 0 ? types.size(1) : size);
                               return sizes;
                             },
                         .dtype = type};
  };
  return {state("single", {0, keys.single}, {}), state("pair", {0, 0, keys.pair}, {}),
          state("structure", {0, keys.single}, {}), state("frames", {kStructureLayers, 0, 7}, exact),
          state("angles", {kStructureLayers, 0, 7, 2}, exact)};
}

std::shared_ptr<models::FoldingHeads> heads_of(const SmallFoldingKeys& keys, nn::Layers& make) {
  const auto heads = std::make_shared<models::FoldingHeads>(models::FoldingHeads{
      .pair = kPair, .single = kSingle, .structure = kStructure, .frames = kFrames, .angles = kAngles});
  const auto head = [&](const char* name, int64_t in, int64_t out) -> std::shared_ptr<nn::Dense> {
    return make.dense(name, in, out, {.deviation = kDeviation});
  };
  heads->lddt = [lddt = head("head.lddt", keys.single, keys.points * kBins), points = keys.points](
                    const at::Tensor& structure) { return lddt->forward(structure).unflatten(-1, {points, kBins}); };
  heads->distogram = [pairs = head("head.distogram", keys.pair, kErrors)](const at::Tensor& rows,
                                                                          const at::Tensor& mirrored) {
    return pairs->forward(rows + mirrored);
  };
  if (keys.predicts_errors)
    heads->errors = [pairs = head("head.errors", keys.pair, kErrors)](const at::Tensor& rows) {
      return pairs->forward(rows);
    };
  heads->beta = [](const at::Tensor& atoms, const at::Tensor&) { return atoms.select(2, 3); };
  return heads;
}

models::Model make_small_folding(const models::ModelShape& s, nn::Layers& layers) {
  const auto keys = s.own.as<SmallFoldingKeys>();
  models::Model model;
  model.fields = {"aatype", "residue_index", "seq_mask", "recycled_single", "recycled_pair", "recycled_beta"};
  if (keys.reads_alignments) model.fields.insert(model.fields.end(), {"msa_feat", "msa_mask"});
  model.states = states_of(keys, layers.parameters().options().dtype);
  const auto embedding = std::make_shared<const SmallEmbedding>(keys, layers);
  model.embed =
      models::Embed({kSingle, kPair}, [embedding](models::States& states, const tensor::Batch& batch,
                                                  const nn::ForwardContext&) { embedding->forward(states, batch); });
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const SmallBlock>(concat("blocks.", i), keys, layers);
    model.blocks.push_back({{kSingle, kPair}, {kSingle, kPair}, [block](auto& states, const nn::ForwardContext& step) {
                              block->forward(states, *step.batch);
                            }});
  }
  const auto structure = std::make_shared<const models::StructureModule>(concat("blocks.", s.layers, ".structure"),
                                                                         structure_sizes(keys), layers);
  model.blocks.push_back(
      {{kSingle, kPair},
       {kStructure, kFrames, kAngles},
       [structure](models::States& states, const nn::ForwardContext& step) { fold_states(*structure, states, step); }});
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", keys.single, {});
  model.norm = models::Block({kSingle, kPair, kStructure, kFrames, kAngles}, {kStructure},
                             [norm](models::States& states, const nn::ForwardContext&) {
                               states[kStructure] = norm->forward(states[kStructure]);
                             });
  model.folding = heads_of(keys, layers);
  return model;
}

models::Task small_folding_task(const models::ModelShape&) {
  return {.reads = models::Reads::Fields, .writes = models::Writes::Nothing, .objective = "folding"};
}

void settle_small_folding(models::ModelShape& s) {
  const auto keys = s.own.as<SmallFoldingKeys>();
  s.set(models::FurtherBlocks{.after = 1});
  s.set(models::FoldingSizes{.single = keys.single,
                             .pair = keys.pair,
                             .structure = keys.single,
                             .structure_layers = kStructureLayers,
                             .reads_alignments = keys.reads_alignments,
                             .folds_complexes = !keys.reads_alignments,
                             .passes = 3});
}

std::vector<nn::ExternalName> names_of(const models::ModelShape& shape) {
  nn::Parameters parameters({}, {.device = at::kMeta});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  std::vector<nn::ExternalName> names;
  for (const nn::Parameter& p : parameters.declared()) names.push_back({p.name, {p.name}});
  return names;
}

models::ModelShape small_folding_of_json(const nlohmann::json& json) {
  SmallFoldingKeys keys;
  keys.single = json.at("single"), keys.pair = json.at("pair");
  keys.points = json.at("points"), keys.predicts_errors = json.at("predicts_errors");
  keys.reads_alignments = json.at("reads_alignments");
  return {.layers = json.at("layers"), .own = keys};
}

nlohmann::json json_of_small_folding(const models::ModelShape& shape) {
  const auto keys = shape.own.as<SmallFoldingKeys>();
  return {{"model_type", "small-folding"},
          {"layers", shape.layers},
          {"single", keys.single},
          {"pair", keys.pair},
          {"points", keys.points},
          {"predicts_errors", keys.predicts_errors},
          {"reads_alignments", keys.reads_alignments}};
}

}  // namespace

models::Architecture small_folding() {
  models::ModelShape small{.layers = 2, .own = SmallFoldingKeys{}};
  settle_small_folding(small);
  return {.name = "small-folding",
          .own = SmallFoldingKeys{},
          .presets = {{"small-folding", small}},
          .make = make_small_folding,
          .task = small_folding_task,
          .unused = {"hidden", "heads", "kv_heads", "head_dim", "ffn", "positions"},
          .settle = settle_small_folding,
          .hugging_face = {.model_type = "small-folding",
                           .names = names_of,
                           .from_json = small_folding_of_json,
                           .to_json = json_of_small_folding}};
}

models::ModelShape small_folding_shape(const models::Registry& registry, const SmallFoldingKeys& keys, int64_t layers) {
  models::ModelShape shape{.layers = layers, .own = keys};
  nlohmann::json json = json_of_small_folding(shape);
  return registry.shape_of(json);
}

void write_small_folding(const std::string& folder, const models::ModelShape& shape, uint64_t seed) {
  nn::Parameters parameters({}, {.seed = seed});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> tensors;
  for (const nn::Parameter& p : parameters) {
    const at::Tensor n = at::arange(p.value.numel(), at::kDouble).view(p.value.sizes());
    // final layers of pairs start at 0, and would hide what is before them
    const at::Tensor waves = .3 * (.7 * n + static_cast<double>(seed + tensors.size())).sin();
    tensors[p.name] = p.value + (p.value.dim() > 1 ? waves : .3 * waves).to(p.value.scalar_type());
  }
  create_folder(folder);
  write_file(folder + "/config.json", json_of_small_folding(shape).dump());
  checkpoint::write_safetensors(folder + "/model.safetensors", tensors);
}

}  // namespace colossal::test
