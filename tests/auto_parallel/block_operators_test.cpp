// Each operator under each of its strategies, compared with the operator on whole tensors.
#include "colossal/auto_parallel/block_operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/plan/strategies.h"
#include "support/tolerance.h"

namespace colossal::automatic::block_operators_test {
namespace {

using Arguments = std::vector<c10::IValue>;

/// One operator with whole operands: arguments of the call that are tensors, in the order of `order`, are its operands.
struct Case {
  std::string op, aten, overload;
  Arguments arguments;
  std::vector<int> order;  // for each operand the index of its argument
  std::vector<int64_t> dims{};
  int64_t groups = 1;
};

c10::OperatorHandle handle_of(const Case& one) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + one.aten).c_str(), one.overload.c_str());
}

at::Tensor whole_result(const Case& one) {
  Arguments stack = one.arguments;
  handle_of(one).callBoxed(&stack);
  return stack.at(0).toTensor();
}

plan::TensorType type_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.is_floating_point() ? "float64" : "int64"};
}

/// The graph and the traced operator of a case, as a tracer would make them.
struct TracedCase {
  plan::Graph graph;
  TracedOperator traced;
  std::vector<at::Tensor> operands;
  int node = 0;
};

TracedCase traced_case(const Case& one, const at::Tensor& result) {
  TracedCase made;
  plan::Node node{.name = "out", .op = one.op, .output = type_of(result), .dims = one.dims, .groups = one.groups};
  made.traced.handle = handle_of(one);
  made.traced.arguments = one.arguments;
  for (const int argument : one.order) {
    const at::Tensor operand = one.arguments[argument].toTensor();
    const std::string name = "in" + std::to_string(made.operands.size());
    TracedOperator::Place place;
    place.argument = argument;
    place.source = {false, static_cast<int>(made.operands.size())};
    made.traced.places.push_back(place);
    made.traced.arguments[argument] = c10::IValue();
    made.graph.nodes.push_back({.name = name, .op = "input", .output = type_of(operand)});
    made.operands.push_back(operand);
    node.inputs.push_back(name);
  }
  made.node = static_cast<int>(made.operands.size());
  made.graph.nodes.push_back(std::move(node));
  made.graph.settle();
  return made;
}

/// Runs the operator under each of its strategies on 2 x 2 ranks. Returns the number of strategies.
int64_t expect_all_strategies(const Case& one, int64_t terms, const comm::RankOptions& options = {}) {
  const at::Tensor want = whole_result(one);
  const TracedCase made = traced_case(one, want);
  const plan::Mesh axes = plan::parse_mesh("data=2,tensor=2");
  const std::vector<plan::Strategy> strategies = plan::strategies_of(made.graph, made.node, axes, {});
  comm::run_ranks(
      4,
      [&](comm::World& world) {
        comm::Mesh mesh(world, {{"data", 2}, {"tensor", 2}});
        const MeshGroups groups = groups_of(axes, mesh);
        for (const plan::Strategy& strategy : strategies) {
          std::vector<at::Tensor> blocks;
          for (size_t i = 0; i < made.operands.size(); ++i)
            blocks.push_back(block_of(made.operands[i], strategy.operands[i], groups).contiguous());
          const NodeShare share = share_of(made.graph, made.node, strategy, axes);
          const at::Tensor got = run_on_blocks({made.graph, made.node, made.traced, strategy, share, groups}, blocks);
          test::expect_close(got, block_of(want, strategy.output, groups), terms, one.op + " " + strategy.name);
        }
      },
      options);
  return static_cast<int64_t>(strategies.size());
}

at::Tensor values(const std::vector<int64_t>& shape, double phase = 0) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).add(phase).mul(0.37).sin().view(shape);
}

Case linear() { return {"linear", "linear", "", {values({4, 6, 8}), values({4, 8}, 3), values({4}, 5)}, {0, 1, 2}}; }

TEST(RunOnBlocks, AddsTheBiasOfALinearLayerOnce) { EXPECT_EQ(expect_all_strategies(linear(), 8), 24); }

TEST(RunOnBlocks, NeedsItsCollectives) {
  EXPECT_THROW(expect_all_strategies(linear(), 8, {.collectives_off = true}), test::ParityError);
}

Case convolution(int64_t channels, int64_t groups) {
  const std::vector<int64_t> one{1, 1};
  return {"conv2d",
          "conv2d",
          "",
          {values({4, channels, 5, 5}), values({channels, channels / groups, 3, 3}, 3), values({channels}, 5), one, one,
           one, groups},
          {0, 1, 2},
          {},
          groups};
}

TEST(RunOnBlocks, DividesConvolutions) {
  expect_all_strategies(convolution(4, 1), 36);
  expect_all_strategies(convolution(4, 4), 9);  // depthwise: each rank has its own groups
  expect_all_strategies(convolution(4, 2), 18);
}

TEST(RunOnBlocks, LooksUpRowsThatOtherRanksHave) {
  const at::Tensor ids = at::arange(24, at::kLong).mul(7).remainder(8).view({4, 6});
  const Case embedding{"embedding", "embedding", "", {values({8, 4}), ids, int64_t{3}, false, false}, {1, 0}};
  expect_all_strategies(embedding, 1);
}

TEST(RunOnBlocks, DividesALossByTheWeightsOfAllRowsThatCount) {
  at::Tensor targets = at::arange(8, at::kLong).remainder(4);
  targets.narrow(0, 0, 3).fill_(-100);  // ranks have other numbers of rows
  const at::Tensor weight = values({4}).abs() + 1;
  for (const int64_t reduction : {1, 2}) {
    expect_all_strategies({"cross_entropy",
                           "cross_entropy_loss",
                           "",
                           {values({8, 4}), targets, weight, reduction, int64_t{-100}, 0.1},
                           {0, 1, 2}},
                          8);
  }
  const at::Tensor shares = at::softmax(values({8, 4}, 9), 1);  // targets are probabilities
  expect_all_strategies({"cross_entropy",
                         "cross_entropy_loss",
                         "",
                         {values({8, 4}), shares, c10::IValue(), int64_t{1}, int64_t{-100}, 0.0},
                         {0, 1}},
                        32);
}

TEST(RunOnBlocks, AveragesOverAllRanks) {
  expect_all_strategies({"mse_loss", "mse_loss", "", {values({4, 8}), values({4, 8}, 3), int64_t{1}}, {0, 1}}, 32);
  expect_all_strategies(
      {"mean", "mean", "dim", {values({4, 8}), std::vector<int64_t>{1}, false, c10::IValue()}, {0}, {1}}, 8);
  const Case weighted{"binary_cross_entropy_with_logits",
                      "binary_cross_entropy_with_logits",
                      "",
                      {values({4, 8}), values({4, 8}, 3).abs(), values({8}, 5).abs(), c10::IValue(), int64_t{1}},
                      {0, 1, 2}};
  expect_all_strategies(weighted, 32);
}

TEST(RunOnBlocks, ReshapesBlocks) {
  const std::vector<int64_t> longer{4, 6, 4, 2}, merged{24, 8}, wide{4, 6, 8};
  expect_all_strategies({"reshape", "reshape", "", {values({4, 6, 8}), longer}, {0}}, 1);
  expect_all_strategies({"reshape", "reshape", "", {values({4, 6, 8}), merged}, {0}}, 1);
  expect_all_strategies({"expand", "expand", "", {values({6, 1}), wide, false}, {0}}, 1);
}

}  // namespace
}  // namespace colossal::automatic::block_operators_test
