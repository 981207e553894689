#include "colossal/models/families/esmfold.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/models/esmfold_block.h"
#include "colossal/models/folding/esmfold_layers.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/features.h"
#include "colossal/ops/geometry/residues.h"
#include "colossal/protein/residues.h"

namespace colossal::models {

namespace esmfold {

Task task(const ModelShape&) { return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "folding"}; }

void settle(ModelShape& s) {
  const auto own = s.own.as<EsmfoldSizes>();
  refuse_grouped_queries(s);
  refuse_free_heads(s, "an ESMFold");
  require(s.head_dim % 2 == 0, "model", "features of a head of ESM-2 must be even, for rotary positions: got ",
          s.head_dim);
  require(s.dropout < .5, "model", "dropout of ESMFold must be below 0.5, because pairs have twice as much: got ",
          s.dropout);
  require(own.language_layers > 0, "model", "language_layers must be positive: got ", own.language_layers);
  own.ids_of_types();
  for (const char* token : {"<cls>", "<eos>", "<mask>"}) own.id_of(token);
  s.positions = 0;
  s.tied = false;
  s.set(FurtherBlocks{.before = own.language_layers + 1, .after = 1});
  s.set(FrozenLanguageModel{own.language_layers});
  s.set(FoldingSizes{.single = own.single,
                     .pair = own.pair,
                     .structure = own.structure,
                     .structure_layers = own.structure_layers,
                     .folds_complexes = true,
                     .passes = own.passes});
}

/// The heads, by the names of transformers. Those of letters and of contacts are not used in folding.
struct Heads {
  Heads(const ModelShape& s, const EsmfoldSizes& own, nn::Layers& make)
      : lddt_norm(make.layer_norm("head.lddt.norm", own.structure, {})),
        distances(make.dense("head.distogram", own.pair, kBins, {.deviation = kDeviation})),
        errors(make.dense("head.errors", own.pair, kBins, {.deviation = kDeviation})),
        letters(make.dense("head.letters", own.single, kLetters, {.deviation = kDeviation})),
        contacts(make.dense("head.contacts", own.language_layers * s.heads, 1, {.deviation = kDeviation})) {
    const int64_t sizes[] = {own.structure, own.lddt_hidden, own.lddt_hidden, kAtoms * kLddtBins};
    for (int i = 0; i < 3; ++i)
      lddt.push_back(make.dense(concat("head.lddt.", i), sizes[i], sizes[i + 1], {.deviation = kDeviation}));
  }
  static constexpr int64_t kBins = 64, kLetters = 23, kAtoms = 37, kLddtBins = 50;
  std::unique_ptr<nn::Norm> lddt_norm;
  std::vector<std::unique_ptr<nn::Dense>> lddt;
  std::unique_ptr<nn::Dense> distances, errors, letters, contacts;
};

std::shared_ptr<const FoldingHeads> folding_heads(const std::shared_ptr<const Heads>& heads, int64_t reader,
                                                  nn::Layers& layers) {
  FoldingHeads made{.ranks = layers.axial_ranks(),
                    .pair = kPair,
                    .single = kSingle,
                    .language = kLanguage,
                    .structure = kStructure,
                    .frames = kFrames,
                    .angles = kAngles,
                    .reader = static_cast<int>(reader)};
  made.lddt = [heads](const at::Tensor& structure) {
    at::Tensor x = heads->lddt_norm->forward(structure);
    for (const auto& layer : heads->lddt) x = layer->forward(x);  // without an activation between them
    return x.unflatten(-1, at::IntArrayRef{Heads::kAtoms, Heads::kLddtBins});
  };
  made.distogram = [heads](const at::Tensor& rows, const at::Tensor& mirrored) {
    return heads->distances->forward((rows + mirrored) / 2);
  };
  made.errors = [heads](const at::Tensor& rows) { return heads->errors->forward(rows); };
  made.beta = [](const at::Tensor& atoms37, const at::Tensor&) {
    return ops::expected_cb(atoms37.select(-2, protein::kAtomN), atoms37.select(-2, protein::kAtomCa),
                            atoms37.select(-2, protein::kAtomC));
  };
  return std::make_shared<const FoldingHeads>(std::move(made));
}

/// The trunk has all features of a chain on each rank; ranks cut pairs alone (nn/axial_ranks.h).
void check_layout(const ModelShape& s, nn::Layers& layers) {
  require(
      layers.batch_parts() == 1 && !layers.features(s.hidden, nn::Place::Outside)->is_split(), "parallel",
      "parallel.tensor.size must be 1 for ESMFold: got a layout that splits features or rows; use parallel.sequence "
      "with mode axial, which divides the pairs");
}

void add_trunk(Model& model, const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<EsmfoldSizes>();
  const EsmFoldSizes sizes{.sequence = own.single,
                           .pair = own.pair,
                           .sequence_width = own.single_width,
                           .pair_width = own.pair_width,
                           .dropout = s.dropout};
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const EsmFoldBlock>(layers, concat("blocks.", model.blocks.size()), sizes);
    const auto run = [block](States& states, const nn::ForwardContext& step) {
      const at::Tensor mask = step.batch->at("seq_mask").to(states[kPair].scalar_type());
      const EsmFoldTrunk end = block->forward({.s = states[kSingle], .z = states[kPair]}, mask, step);
      states[kSingle] = end.s;
      states[kPair] = end.z;
    };
    model.blocks.push_back({{kSingle, kPair}, {kSingle, kPair}, run});
  }
}

Model make(const ModelShape& s, nn::Layers& layers) {
  check_layout(s, layers);
  const auto own = s.own.as<EsmfoldSizes>();
  Model model;
  model.fields = {"aatype", "residue_index", "seq_mask", "recycled_single", "recycled_pair", "recycled_beta"};
  model.states = states_of(s, layers.parameters().options().dtype);
  const auto language = std::make_shared<const LanguageStart>(s, layers);
  model.embed = Embed({kHidden, kShares, kMixed},
                      [language](States& states, const tensor::Batch& batch, const nn::ForwardContext& step) {
                        language->forward(states, batch, step);
                      });
  for (int64_t i = 0; i < own.language_layers; ++i) {
    const auto block = std::make_shared<const LanguageBlock>(s, i, layers);
    model.blocks.push_back({{kHidden, kShares, kMixed},
                            {kHidden, kMixed},
                            [block](States& states, const nn::ForwardContext& step) { block->forward(states, step); }});
  }
  const auto start = std::make_shared<const TrunkStart>(s, concat("blocks.", model.blocks.size()), layers);
  model.blocks.push_back({{kMixed},
                          {kLanguage, kSingle, kPair},
                          [start](States& states, const nn::ForwardContext& step) { start->forward(states, step); }});
  add_trunk(model, s, layers);
  const auto end = std::make_shared<const StructureEnd>(s, concat("blocks.", model.blocks.size()), layers);
  model.blocks.push_back({{kSingle, kPair},
                          {kStructure, kFrames, kAngles},
                          [end](States& states, const nn::ForwardContext& step) { end->forward(states, step); }});
  const std::vector<int> results{kLanguage, kSingle, kPair, kStructure, kFrames, kAngles};
  model.norm = Block(results, results, [](States&, const nn::ForwardContext&) {});
  model.folding = folding_heads(std::make_shared<const Heads>(s, own, layers), own.language_layers, layers);
  return model;
}

ModelShape sized(int64_t hidden, int64_t layers, int64_t heads, int64_t ffn, const EsmfoldSizes& own) {
  return {.hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = ffn,
          .norm_epsilon = 1e-5,
          .tied = false,
          .own = own};
}

/// Returns the published model with ESM-2 of 3 billion parameters, and a toy.
std::vector<Preset> presets() {
  const EsmfoldSizes toy{.language_layers = 2,
                         .single = 32,
                         .pair = 16,
                         .single_width = 8,
                         .pair_width = 8,
                         .structure = 32,
                         .structure_pair = 16,
                         .point_heads = 4,
                         .point_width = 8,
                         .structure_layers = 4,
                         .angle_hidden = 16,
                         .lddt_hidden = 16,
                         .passes = 2};
  return {{"esmfold-tiny", sized(32, 2, 4, 64, toy)},
          {"esmfold", sized(2560, 48, 40, 10240, EsmfoldSizes{.language_layers = 36})}};
}

}  // namespace esmfold

Architecture esmfold_architecture() {
  return {.name = "esmfold",
          .own = EsmfoldSizes{.language_layers = 36},
          .presets = esmfold::presets(),
          .make = esmfold::make,
          .task = esmfold::task,
          .unused = {"positions"},
          .settle = esmfold::settle,
          .hugging_face = esmfold_folder()};
}

}  // namespace colossal::models
