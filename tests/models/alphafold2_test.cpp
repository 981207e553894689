// AlphaFold 2 against the golden values of DeepMind's code: ../shared/reference/folding.md, section (c), G1, G36, G38.
// Weights are read from files under AlphaFold's names, so the maps of names are tested with the numbers.
#include "colossal/models/families/alphafold2.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/weight_source.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/formats/zip_file.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/folding/confidence.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/models/folding/residue_tables.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/recompute.h"
#include "colossal/run/external_names.h"
#include "models/made_model.h"
#include "support/alphafold_weights.h"
#include "support/few_residues.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::models::alphafold2_test {
namespace {

using test::cosines;
using testing::HasSubstr;

constexpr double kDigits = 1e-8;          // of the numbers given
constexpr double kTemplateDigits = 2e-7;  // angles of templates without atoms are differences of nearly equal numbers

double sum_of(const at::Tensor& x) { return test::signature(x.contiguous()).item<double>(); }

void add(tensor::Batch& batch, const char* name, at::Tensor values) {
  std::vector<tensor::Dim> dims(static_cast<size_t>(values.dim()), tensor::Dim::Other);
  dims[0] = tensor::Dim::Row;
  batch.add(name, {std::move(values), dims});
}

/// Returns the features of G36, and with templates those of G38.
tensor::Batch golden_batch(const ModelShape& shape, bool templates) {
  const at::Tensor types = at::tensor({0, 1, 7, 14, 12, 18}, at::kLong).unsqueeze(0);  // A R G P M Y
  const auto ones = [](at::IntArrayRef sizes) { return at::ones(sizes, at::kDouble); };
  tensor::Batch batch;
  add(batch, "aatype", types);
  add(batch, "residue_index", at::arange(6, at::kLong).unsqueeze(0));
  add(batch, "seq_mask", ones({1, 6}));
  add(batch, "target_feat", cosines(.19, {1, 6, 22}));
  add(batch, "msa_feat", cosines(.17, {1, 3, 6, 49}));
  add(batch, "msa_mask", ones({1, 3, 6}));
  add(batch, "extra_msa", at::arange(24, at::kLong).mul(5).remainder(23).view({1, 4, 6}));
  add(batch, "extra_msa_mask", ones({1, 4, 6}));
  add(batch, "extra_has_deletion", cosines(.21, {1, 4, 6}));
  add(batch, "extra_deletion_value", cosines(.27, {1, 4, 6}));
  if (templates) {
    const at::Tensor of_templates = at::stack({types, (types + 3).remainder(20)}, 1);
    const ops::ResidueTables tables = residue_tables(at::kDouble);
    const at::Tensor n = at::arange(2 * 6 * 37 * 3, at::kDouble);
    const at::Tensor places = (6 * (.43 * n + .05 * n * n).cos()).view({1, 2, 6, 37, 3});
    const at::Tensor drawn = cosines(.31, {1, 2, 6, 37}).gt(-.5).logical_or(at::arange(37).lt(3));
    const at::Tensor masks = ops::residue_rows(tables.mask37, of_templates) * drawn;
    const ops::MaskedPoints beta = ops::side_chain_points(places, masks, of_templates, tables);
    add(batch, "template_aatype", of_templates);
    add(batch, "template_mask", ones({1, 2}));
    add(batch, "template_all_atom_positions", places);
    add(batch, "template_all_atom_masks", masks);
    add(batch, "template_pseudo_beta", beta.positions);
    add(batch, "template_pseudo_beta_mask", beta.mask);
  }
  return with_recycled(batch, {}, shape);
}

States end_of(const Model& model, const tensor::Batch& batch) {
  return run_stage(model, {0, static_cast<int64_t>(model.blocks.size())}, {}, nn::step_of(batch));
}

/// Returns a copy of a batch whose recycled pairs a pass may overwrite.
tensor::Batch copied(const tensor::Batch& batch) {
  return batch.map([](const tensor::Field& field) { return field.tensor.clone(); });
}

/// What a pass must give.
struct GoldenPass {
  double positions, m0, z, s, arginine[3], plddt[2], ptm;
};

struct GoldenLogits {
  double lddt, distogram, letters, resolved, errors;
};

const at::Tensor& state(const States& end, int index) { return end[static_cast<size_t>(index)]; }

void expect_pass(const Model& model, const States& end, const tensor::Batch& batch, const GoldenPass& golden,
                 double digits) {
  const FoldingHeads& heads = *model.folding;
  const at::Tensor atoms = folded_atoms(heads, end, batch.at("aatype")).positions37;
  EXPECT_NEAR(sum_of(atoms), golden.positions, 2e-6);  // AlphaFold's frames of side chains are rounded to fp32
  EXPECT_NEAR(sum_of(state(end, heads.alignment).select(1, 0)), golden.m0, digits);
  EXPECT_NEAR(sum_of(state(end, heads.pair)), golden.z, digits);
  EXPECT_NEAR(sum_of(state(end, heads.unfolded)), golden.s, digits);
  for (int64_t c = 0; c < 3; ++c) EXPECT_NEAR(atoms[0][1][1][c].item<double>(), golden.arginine[c], digits);
  const at::Tensor confidence = plddt(heads.lddt(state(end, heads.structure)));
  for (int64_t r = 0; r < 2; ++r) EXPECT_NEAR(confidence[0][r][0].item<double>(), golden.plddt[r], digits);
  const at::Tensor errors = heads.errors(state(end, heads.pair)), mask = batch.at("seq_mask");
  const at::Tensor ptm = predicted_tm(tm_terms(errors, mask), mask.unsqueeze(2) * mask.unsqueeze(1));
  EXPECT_NEAR(ptm.item<double>(), golden.ptm, digits);
}

void expect_logits(const Model& model, const States& end, const GoldenLogits& golden, double digits) {
  const FoldingHeads& heads = *model.folding;
  const at::Tensor& z = state(end, heads.pair);
  EXPECT_NEAR(sum_of(heads.lddt(state(end, heads.structure))), golden.lddt, digits);
  EXPECT_NEAR(sum_of(heads.distogram(z, z.transpose(1, 2))), golden.distogram, digits);
  EXPECT_NEAR(sum_of(heads.letters(state(end, heads.alignment))), golden.letters, digits);
  EXPECT_NEAR(sum_of(heads.resolved(state(end, heads.unfolded))), golden.resolved, digits);
  EXPECT_NEAR(sum_of(expected_errors(heads.errors(z))), golden.errors, digits);
}

/// A file of AlphaFold, and the shape that it says, with the 3 layers of the structure module of these tests.
struct GoldenFile {
  explicit GoldenFile(bool templates) {
    path = folder.write("params_model_1_ptm.npz", test::alphafold_npz(test::alphafold_golden_shapes(templates)));
    nlohmann::json config = checkpoint::read_config(path);
    EXPECT_EQ(config["structure_layers"], 8);  // of the published models: no weight shows it
    config["structure_layers"] = 3;
    shape = built_in().shape_of(config);
  }
  test::TemporaryFolder folder;
  std::string path;
  ModelShape shape;
};

void expect_golden(bool templates, const GoldenPass& first, const GoldenPass& second, const GoldenLogits& logits) {
  if (!formats::reads_zips()) GTEST_SKIP() << "built without libzip";
  const GoldenFile file(templates);
  const double digits = templates ? kTemplateDigits : kDigits;
  Made made(file.shape);
  checkpoint::import_weights(file.path, made.parameters, run::external_names(file.shape));
  const Model& model = made.model;
  for (const bool with_gradients : {true, false}) {
    const at::AutoGradMode mode(with_gradients);
    tensor::Batch batch = golden_batch(file.shape, templates);
    const States end = end_of(model, copied(batch));
    expect_pass(model, end, batch, first, digits);
    batch = with_recycled(batch, recycled(*model.folding, end, batch), file.shape);
    const States again = end_of(model, copied(batch));
    expect_pass(model, again, batch, second, digits);
    expect_logits(model, again, logits, digits);
  }
}

TEST(AlphaFold2, HasTheValuesOfAlphaFold) {
  expect_golden(false,
                {-3.979785442,
                 -22.69097164,
                 6.160285796,
                 -.2051207476,
                 {-.324538782, 4.52389894, 3.59996422},
                 {49.85844401, 49.81888454},
                 .004458597485},
                {-2.385871777,
                 -8.519412157,
                 10.31461756,
                 .05166554012,
                 {-1.35995491, 5.5298462, 3.94673713},
                 {49.86488575, 49.82861116},
                 .003040623349},
                {4.008662958, 2.295215726, -.4571934519, -1.300166159, 8.159968331});
}

TEST(AlphaFold2, HasTheValuesOfAlphaFoldWithTemplates) {
  expect_golden(true,
                {-3.764225737,
                 -21.64911474,
                 5.435191269,
                 -.1038424584,
                 {-.491040105, -1.3629921, -2.68704122},
                 {49.99249921, 49.99488801},
                 .01252712394},
                {9.410072156,
                 -9.27913462,
                 11.32108155,
                 -.08388200988,
                 {-2.06922664, -.233698769, .617899089},
                 {49.99268487, 49.96572586},
                 .01680170938},
                {-.2749805195, 1.914958137, .809181567, 5.42383378, 8.979261246});
}

/// Returns the numbers of parameters of the parts of a model, by the begin of their names in OpenFold.
std::map<std::string, int64_t> parts_of(const ModelShape& shape) {
  const Made made(shape, /*has_memory=*/false);
  std::map<std::string, int64_t> parts;
  for (const nn::ExternalName& name : shape.architecture->hugging_face.names(shape)) {
    const std::string& theirs = name.parts.front().name;
    const size_t begin = theirs.starts_with("aux_heads.") ? 10 : 0;
    const tensor::ShardSpec& spec = const_cast<Made&>(made).parameters.at(name.ours).spec;
    int64_t count = 1;
    for (const int64_t size : spec.shape) count *= size;
    parts[theirs.substr(0, theirs.find('.', begin))] += count;
  }
  EXPECT_EQ(made.parameters.numel(), std::accumulate(parts.begin(), parts.end(), int64_t{0},
                                                     [](int64_t sum, auto& part) { return sum + part.second; }));
  return parts;
}

TEST(AlphaFold2, HasTheParametersOfThePublishedModels) {
  const auto shape_of = [](const char* name, const std::vector<std::string>& own) {
    return built_in().resolve({.name = name, .own = own_keys(own)});
  };
  const auto count_of = [](const ModelShape& shape) { return Made(shape, /*has_memory=*/false).parameters.numel(); };
  EXPECT_EQ(count_of(shape_of("alphafold2", {})), 93229082);
  EXPECT_EQ(count_of(shape_of("alphafold2", {"templates=0"})), 92899674);
  EXPECT_EQ(count_of(shape_of("alphafold2-ptm", {"templates=0"})), 92907930);
  const std::map<std::string, int64_t> want{
      {"input_embedder", 33024},     {"recycling_embedder", 2816},   {"template_embedder", 329408},
      {"extra_msa_embedder", 1664},  {"extra_msa_stack", 2805248},   {"evoformer", 87936384},
      {"structure_module", 2019116}, {"aux_heads.plddt", 73010},     {"aux_heads.distogram", 8256},
      {"aux_heads.tm", 8256},        {"aux_heads.masked_msa", 5911}, {"aux_heads.experimentally_resolved", 14245}};
  EXPECT_EQ(parts_of(shape_of("alphafold2-ptm", {})), want);
}

/// Sizes of a batch of waves.
struct WaveSizes {
  int64_t residues, clusters, extra, templates;
};

ModelShape tiny_shape() {
  return built_in().resolve({.name = "alphafold2-tiny",
                             .layers = 1,
                             .own = own_keys({"templates=2", "template_blocks=2", "structure_layers=2", "pae=true"})});
}

/// Gives parameters waves that depend on their names, because many start at 0.
void set_waves(nn::Parameters& parameters) {
  const at::NoGradGuard no_grad;
  for (nn::Parameter& p : parameters) {
    const auto shift = static_cast<double>(std::hash<std::string>()(p.name) % 1000);
    const bool is_norm = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    p.value.copy_(
        (at::arange(p.value.numel(), at::kDouble) * .7 + shift).sin().mul(.2).add(is_norm ? 1 : 0).view_as(p.value));
  }
}

/// Returns a batch of `rows` chains with waves in its fields, and masks of ones.
tensor::Batch wave_batch(const ModelShape& shape, int64_t rows, const WaveSizes& sizes) {
  const tensor::Batch empty = example_folding(
      shape, {.rows = rows, .residues = sizes.residues, .clusters = sizes.clusters, .extra = sizes.extra}, at::kDouble);
  const auto filled = [&](const std::string& name, const at::Tensor& like) -> at::Tensor {
    std::vector<int64_t> shape = like.sizes().vec();
    if (name.starts_with("template_")) shape[1] = sizes.templates;
    if (name.find("mask") != std::string::npos) return at::ones(shape, at::kDouble);
    const at::Tensor waves = cosines(.37, shape) * (name.find("positions") != std::string::npos ? 6 : 1);
    if (name == "residue_index") return at::arange(shape[1], at::kLong).expand(shape).contiguous();
    return like.scalar_type() == at::kLong ? waves.abs().mul(20).to(at::kLong) : waves;
  };
  tensor::Batch batch;
  for (const tensor::Batch::Named& field : empty.fields())
    batch.add(field.name, {filled(field.name, field.field.tensor), field.field.dims});
  return batch;
}

/// Returns the batch with all its fields padded to `sizes`: numbers by ones, masks by zeros.
tensor::Batch padded(const ModelShape& shape, const tensor::Batch& batch, const WaveSizes& sizes) {
  const tensor::Batch larger = wave_batch(shape, batch.rows(), sizes);
  tensor::Batch result;
  for (const tensor::Batch::Named& field : batch.fields()) {
    const bool is_mask = field.name.find("mask") != std::string::npos;
    at::Tensor to = larger.at(field.name).clone();
    is_mask ? to.zero_() : to.fill_(1);
    at::Tensor part = to;
    for (int64_t d = 0; d < to.dim(); ++d) part = part.narrow(d, 0, field.field.tensor.size(d));
    part.copy_(field.field.tensor);
    result.add(field.name, {to, field.field.dims});
  }
  return result;
}

TEST(AlphaFold2, IgnoresPadding) {
  const ModelShape shape = tiny_shape();
  Made made(shape);
  set_waves(made.parameters);
  const at::NoGradGuard no_grad;
  const tensor::Batch batch = wave_batch(shape, 2, {.residues = 5, .clusters = 2, .extra = 2, .templates = 1});
  const States want = end_of(made.model, copied(batch));
  const FoldingHeads& heads = *made.model.folding;
  const auto expect_same = [&](const tensor::Batch& other, const char* what) {
    const States got = end_of(made.model, copied(other));
    for (const int index : {heads.pair, heads.alignment, heads.structure, heads.frames, heads.angles}) {
      at::Tensor part = state(got, index);
      for (int64_t d = 0; d < part.dim(); ++d) part = part.narrow(d, 0, state(want, index).size(d));
      EXPECT_LT((part - state(want, index)).abs().max().item<double>(), 1e-11) << what << ", state " << index;
    }
  };
  expect_same(padded(shape, batch, {.residues = 7, .clusters = 2, .extra = 2, .templates = 1}), "residues");
  expect_same(padded(shape, batch, {.residues = 5, .clusters = 3, .extra = 4, .templates = 1}), "rows");
  expect_same(padded(shape, batch, {.residues = 5, .clusters = 2, .extra = 2, .templates = 2}), "templates");
}

TEST(AlphaFold2, NeedsNeitherTemplatesNorFurtherRows) {
  const ModelShape shape = tiny_shape();
  Made made(shape);
  set_waves(made.parameters);
  const at::NoGradGuard no_grad;
  const tensor::Batch batch = wave_batch(shape, 1, {.residues = 5, .clusters = 2, .extra = 0, .templates = 0});
  const tensor::Batch with_padding = padded(shape, batch, {.residues = 5, .clusters = 2, .extra = 2, .templates = 2});
  const States alone = end_of(made.model, copied(batch)), other = end_of(made.model, copied(with_padding));
  const int frames = made.model.folding->frames;
  EXPECT_LT((state(alone, frames) - state(other, frames)).abs().max().item<double>(), 1e-11);
}

/// Gradients of a loss of all results, by parameter.
using Gradients = std::map<std::string, at::Tensor>;

/// Returns the sum of the signatures of the chains, each on its own, so that chains may be in any micro-batch.
at::Tensor signature_of_chains(const at::Tensor& x) {
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int64_t row = 0; row < x.size(0); ++row) sum = sum + test::signature(x.narrow(0, row, 1).contiguous());
  return sum;
}

at::Tensor loss_of(const FoldingHeads& heads, const States& end) {
  const at::Tensor &z = state(end, heads.pair), &structure = state(end, heads.structure);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (const at::Tensor& result :
       {state(end, heads.frames), state(end, heads.angles), heads.letters(state(end, heads.alignment)), heads.errors(z),
        heads.lddt(structure), heads.distogram(z, z.transpose(1, 2)), heads.resolved(state(end, heads.unfolded))})
    sum = sum + signature_of_chains(result);
  return sum;
}

/// Returns the gradients of two chains with dropout, in micro-batches of `rows` chains.
Gradients gradients_of(const distributed::ParallelConfig& layout, int64_t rows) {
  ModelShape shape = tiny_shape();
  auto own = shape.own.as<AlphaFold2Sizes>();
  own.alignment_dropout = .15, own.pair_dropout = .25, own.structure_dropout = .1;
  shape.own = own;
  const tensor::Batch batch = wave_batch(shape, 2, {.residues = 5, .clusters = 2, .extra = 2, .templates = 2});
  Gradients all;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(layout.ranks()), [&](comm::World& world) {
    comm::Mesh mesh(world, layout.axes());
    distributed::DistributedModel model(
        mesh, layout, shape, {.dtype = at::kDouble},
        {.micro_batches = 2 / rows, .costs = [&] {
           return costs_of(shape, example_folding(shape, {.residues = 5, .clusters = 2, .extra = 2}, at::kDouble));
         }});
    set_waves(model.parameters());
    std::vector<nn::ForwardContext> steps;
    for (int64_t first = 0; first < 2; first += rows)
      steps.push_back(
          nn::step_of(batch.part(first, rows),
                      {.training = true, .dropout_seed = 3, .recompute = nn::Recompute::Block, .first_row = first}));
    const auto loss = [&](int, const States& end, const nn::ForwardContext&) {
      return loss_of(*model.model().folding, end);
    };
    model.train(steps, loss, {});
    const std::lock_guard lock(mutex);
    for (const nn::Parameter& p : model.parameters())
      all[p.name] = p.value.grad().defined() ? p.value.grad().clone() : at::Tensor();
  });
  return all;
}

TEST(AlphaFold2, TrainsInAPipelineAsInOneProcess) {
  distributed::ParallelConfig layout;
  const Gradients want = gradients_of(layout, 2);
  layout.pipeline.size = 2;
  layout.pipeline.micro_batches = 2;
  layout.pipeline.layers_per_stage = {3, 2};
  const Gradients got = gradients_of(layout, 1);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, gradient] : want) {
    ASSERT_TRUE(gradient.defined() && got.at(name).defined()) << name;
    const double limit = 1e-10 * std::max(1., gradient.abs().max().item<double>());
    EXPECT_LT((got.at(name) - gradient).abs().max().item<double>(), limit) << name;
  }
}

TEST(AlphaFold2, ComputesFramesInFp32InBf16) {
  const ModelShape shape = tiny_shape();
  Made made(shape, /*has_memory=*/true, at::kBFloat16);
  const at::NoGradGuard no_grad;
  const tensor::Batch batch =
      wave_batch(shape, 1, {.residues = 5, .clusters = 2, .extra = 2, .templates = 2})
          .map([](const tensor::Field& field) {
            return field.tensor.is_floating_point() ? field.tensor.to(at::kFloat) : field.tensor;
          });
  const nn::ForwardContext step = nn::step_of(batch);
  const States end =
      run_stage(made.model, {0, static_cast<int64_t>(made.model.blocks.size()) - 1, true, false}, {}, step);
  check_sizes(made.model, end, step, static_cast<int64_t>(made.model.blocks.size()) - 2);
  const States folded = end_of(made.model, copied(batch));
  const FoldingHeads& heads = *made.model.folding;
  EXPECT_EQ(state(folded, heads.pair).scalar_type(), at::kBFloat16);
  EXPECT_EQ(state(folded, heads.frames).scalar_type(), at::kFloat);
  EXPECT_TRUE(folded_atoms(heads, folded, batch.at("aatype")).positions37.isfinite().all().item<bool>());
}

TEST(AlphaFold2, OverwritesTheRecycledPairsWithoutGradients) {
  const ModelShape shape = tiny_shape();
  Made made(shape);
  const at::NoGradGuard no_grad;
  const tensor::Batch batch = wave_batch(shape, 1, {.residues = 5, .clusters = 2, .extra = 2, .templates = 2});
  const States end = end_of(made.model, batch);
  EXPECT_EQ(state(end, made.model.folding->pair).const_data_ptr(), batch.at("recycled_pair").const_data_ptr());
}

TEST(AlphaFold2, CountsItsOperations) {
  const ModelShape shape = tiny_shape();
  const Costs costs = costs_of(shape, example_folding(shape, {.residues = 5, .clusters = 2, .extra = 2}));
  EXPECT_EQ(costs.blocks.size(),
            5);  // two of templates, one of further rows, one of the Evoformer, the structure module
  for (const double block : costs.blocks) EXPECT_GT(block, 0);
}

TEST(AlphaFold2, RefusesTensorParallelism) {
  distributed::ParallelConfig layout;
  layout.tensor.size = 2;
  EXPECT_THAT(test::thrown_message([&] { gradients_of(layout, 1); }),
              HasSubstr("tensor.size must be 1 for a folding model: got 2"));
}

}  // namespace
}  // namespace colossal::models::alphafold2_test
