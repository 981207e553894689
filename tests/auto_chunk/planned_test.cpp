// Blocks of four models, planned and run within three budgets: the numbers of the plain pass, and the memory that the
// plan predicts. The planner knows none of them.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/auto_chunk/planner.h"
#include "colossal/auto_chunk/run.h"
#include "colossal/auto_chunk/timeline.h"
#include "colossal/memory/account.h"
#include "colossal/models/config.h"
#include "colossal/models/esmfold_block.h"
#include "colossal/models/evoformer_block.h"
#include "colossal/models/folding/structure_module.h"
#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"
#include "support/thrown_message.h"

namespace colossal::auto_chunk::planned_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// Returns values in [-1, 1] that `phase` tells apart.
at::Tensor waves(const std::vector<int64_t>& shape, double phase) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).mul(.37).add(phase).sin().view(shape);
}

/// A forward pass and its inputs, which it may overwrite. No operator's own buffers are large beside its tensors.
struct Pass {
  std::string name;
  trace::Function function;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<std::vector<std::string>> dims;
  std::shared_ptr<nn::Parameters> parameters =
      std::make_shared<nn::Parameters>(tensor::MeshCoordinates{}, nn::Parameters::Options{.dtype = at::kDouble});

  std::vector<at::Tensor> inputs() const {
    std::vector<at::Tensor> made;
    for (const auto& shape : shapes) made.push_back(waves(shape, static_cast<double>(made.size())));
    return made;
  }
  trace::TracedModule traced() const {
    std::vector<at::Tensor> inputs;
    for (const auto& shape : shapes)
      inputs.push_back(at::empty(shape, at::TensorOptions(at::kMeta).dtype(at::kDouble)));
    std::vector<trace::Captured> captured;
    for (const nn::Parameter& parameter : *parameters) captured.push_back({parameter.name, parameter.value});
    return trace::trace_function(function, inputs, captured);
  }
  ChunkOptions options() const { return {.overwritten = std::vector<bool>(shapes.size(), true), .dims = dims}; }
  /// Gives parameters values of a sine, so that no layer starts silent.
  void fill() const {
    const at::NoGradGuard no_grad;
    double phase = 0;
    for (nn::Parameter& parameter : *parameters)
      parameter.value.copy_(waves(parameter.value.sizes().vec(), ++phase).mul(.3)).add_(parameter.value.dim() == 1);
  }
};

Pass esmfold_block() {
  Pass pass{.name = "esmfold", .shapes = {{1, 32, 32}, {1, 32, 32, 64}}, .dims = {{"", "i", ""}, {"", "i", "j", ""}}};
  nn::SerialLayers make(*pass.parameters);
  const auto block = std::make_shared<models::EsmFoldBlock>(
      make, "block", models::EsmFoldSizes{.sequence = 32, .pair = 64, .sequence_width = 8, .pair_width = 32});
  pass.function = [block](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const models::EsmFoldTrunk out = block->forward({in[0], in[1]}, {}, {});
    return {out.s, out.z};
  };
  pass.fill();
  return pass;
}

Pass evoformer_block() {
  Pass pass{.name = "evoformer",
            .shapes = {{1, 6, 32, 16}, {1, 32, 32, 64}},
            .dims = {{"", "s", "i", ""}, {"", "i", "j", ""}}};
  nn::SerialLayers make(*pass.parameters);
  const auto block = std::make_shared<models::EvoformerBlock>(make, "block",
                                                              models::EvoformerSizes{.alignment = 16,
                                                                                     .pair = 64,
                                                                                     .rows = {.heads = 2, .width = 8},
                                                                                     .edges = {.heads = 2, .width = 32},
                                                                                     .outer = 4,
                                                                                     .triangle = 64});
  const at::Tensor rows = at::ones({1, 6, 32}, at::kDouble), pairs = at::ones({1, 32, 32}, at::kDouble);
  rows[0][3][2] = 0, rows[0][1][19] = 0, pairs[0][0][2] = 0, pairs[0][4][19] = 0;
  pass.function = [block, rows, pairs](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const models::Evoformer out = block->forward({in[0], in[1]}, {rows, pairs}, {});
    return {out.m, out.z};
  };
  pass.fill();
  return pass;
}

Pass structure_layer() {
  Pass pass{.name = "structure", .shapes = {{1, 40, 16}, {1, 40, 40, 32}}, .dims = {{"", "i", ""}, {"", "i", "j", ""}}};
  nn::SerialLayers make(*pass.parameters);
  const auto module = std::make_shared<models::StructureModule>(
      "structure", models::StructureSizes{.points = {.single = 16, .pair = 32, .heads = 2, .head_dim = 4}, .layers = 1},
      make);
  const at::Tensor mask = at::ones({1, 40}, at::kDouble);
  mask[0][7] = 0;
  pass.function = [module, mask](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const models::StructureLayer layer = module->forward(in[0], in[1], mask, {}).back();
    return {layer.s, layer.raw_angles, layer.frames.translation};
  };
  pass.fill();
  return pass;
}

/// The first block of a model of the registry.
Pass block_of(const std::string& name, const std::vector<int64_t>& shape) {
  Pass pass{.name = name, .shapes = {shape}, .dims = {{"row", "token", ""}}};
  nn::SerialLayers make(*pass.parameters);
  const models::ModelShape sizes = models::built_in().resolve({.name = name});
  const auto model = std::make_shared<models::Model>(models::make_model(sizes, make));
  pass.function = [model](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    models::States states{in[0]};
    model->blocks[0].run(states, {});
    return {states[0]};
  };
  pass.fill();
  return pass;
}

/// Expects the numbers of the plain pass, and the predicted peak.
void expect_planned(const Pass& pass, const ChunkGraph& graph, const PlannedChunks& planned) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> wanted = pass.function(pass.inputs());
  const Schedule schedule = schedule_of(graph, planned.plan);
  EXPECT_EQ(timeline_of(graph, schedule).peak, planned.peak);
  memory::Account account;
  std::vector<at::Tensor> inputs = pass.inputs();
  account.reset_peaks();
  const std::vector<at::Tensor> got = run(graph, schedule, std::move(inputs));
  const auto counted = static_cast<double>(account.usage().peak_total);
  EXPECT_NEAR(static_cast<double>(planned.peak) / counted, 1, .05) << pass.name << ": " << counted << " counted";
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_LE((wanted[i] - got[i]).abs().max().item<double>(), 1e-12) << pass.name << " result " << i;
}

void expect_budgets(const Pass& pass, double smallest) {
  const trace::TracedModule traced = pass.traced();
  const ChunkGraph graph(traced, pass.options());
  const ChunkPlanner planner(graph);
  const int64_t most = planner.plan(0).peak, least = planner.smallest_peak();
  EXPECT_LE(static_cast<double>(least), smallest * static_cast<double>(most)) << pass.name << " of " << most;
  expect_planned(pass, graph, planner.plan(0));
  double seconds = planner.plan(least).seconds;
  for (const int64_t budget : {least, (least + most) / 2, most}) {
    const PlannedChunks planned = planner.plan(budget);
    EXPECT_LE(planned.peak, budget);
    EXPECT_LE(planned.seconds, seconds) << "a larger budget is never slower";
    seconds = planned.seconds;
    expect_planned(pass, graph, planned);
  }
  EXPECT_THAT(planner.plan(least).plan.regions, Not(IsEmpty()));
  EXPECT_THAT(test::thrown_message([&] { planner.plan(least - 1); }), HasSubstr("must be at least"));
}

TEST(PlannedChunks, FitAnEsmFoldBlock) { expect_budgets(esmfold_block(), .4); }
TEST(PlannedChunks, FitAnEvoformerBlock) { expect_budgets(evoformer_block(), .4); }
TEST(PlannedChunks, FitAStructureModule) { expect_budgets(structure_layer(), .9); }
TEST(PlannedChunks, FitAGpt2Block) { expect_budgets(block_of("gpt2-tiny", {2, 32, 128}), .5); }
TEST(PlannedChunks, FitAViTBlock) { expect_budgets(block_of("vit-tiny-cifar", {2, 17, 128}), .7); }

}  // namespace
}  // namespace colossal::auto_chunk::planned_test
