// Each operator under each of its strategies, compared with the operator on whole tensors.
#include "colossal/auto_parallel/block_operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/comm/traffic.h"
#include "colossal/plan/strategies.h"
#include "support/tolerance.h"

namespace colossal::auto_parallel::block_operators_test {
namespace {

using Arguments = std::vector<c10::IValue>;

/// One operator with whole operands: arguments of the call that are tensors, in the order of `order`, are its operands.
struct Case {
  std::string op, aten, overload;
  Arguments arguments;
  std::vector<int> order;  // for each operand the index of its argument
  std::vector<int64_t> dims{};
  int64_t groups = 1;
  std::vector<int> fixed{};  // operands of real numbers that have no gradient
};

c10::OperatorHandle handle_of(const Case& one) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + one.aten).c_str(), one.overload.c_str());
}

plan::TensorType type_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.is_floating_point() ? "float64" : "int64"};
}

/// The graph and the traced operator of a case, as a tracer would make them.
struct TracedCase {
  plan::Graph graph;
  trace::TracedOperator traced;
  std::vector<at::Tensor> operands;  // whole; those with gradient are leaves
  at::Tensor result, gradient;       // whole
  int node = 0;
};

at::Tensor values(const std::vector<int64_t>& shape, double phase = 0) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).add(phase).mul(0.37).sin().view(shape);
}

/// Runs the operator on whole tensors, forward and backward.
void run_whole(const Case& one, TracedCase& made) {
  Arguments stack = one.arguments;
  for (size_t i = 0; i < one.order.size(); ++i) stack[one.order[i]] = made.operands[i];
  handle_of(one).callBoxed(&stack);
  made.result = stack.at(0).toTensor();
  made.gradient = values(made.result.sizes().vec(), 11);
  made.result.backward(made.gradient);
}

TracedCase traced_case(const Case& one) {
  TracedCase made;
  made.traced.handle = handle_of(one);
  made.traced.arguments = one.arguments;
  std::vector<std::string> names;
  for (const int argument : one.order) {
    const auto index = static_cast<int>(made.operands.size());
    const at::Tensor operand = one.arguments[argument].toTensor().clone();
    const bool trains = operand.is_floating_point() && !std::count(one.fixed.begin(), one.fixed.end(), index);
    const std::string name = "in" + std::to_string(index);
    trace::TracedOperator::Place place;
    place.argument = argument;
    place.operand = index;
    place.source = {trains, static_cast<int>(trains ? made.graph.parameters.size() : made.graph.nodes.size())};
    made.traced.places.push_back(place);
    made.traced.arguments[argument] = c10::IValue();
    if (trains)
      made.graph.parameters.push_back({name, type_of(operand)});
    else
      made.graph.nodes.push_back({.name = name, .op = "input", .output = type_of(operand)});
    made.operands.push_back(operand.requires_grad_(trains));
    names.push_back(name);
  }
  run_whole(one, made);
  made.node = static_cast<int>(made.graph.nodes.size());
  made.graph.nodes.push_back({.name = "out",
                              .op = one.op,
                              .inputs = names,
                              .output = type_of(made.result),
                              .dims = one.dims,
                              .groups = one.groups});
  made.graph.settle();
  return made;
}

/// The traffic of a rank must be that of the strategy's calls, and no other.
void expect_calls(const plan::Strategy& strategy, const plan::Mesh& mesh, const comm::Traffic& traffic) {
  std::map<comm::Traffic::Key, comm::Traffic::Count> want;
  for (const plan::Call& call : strategy.calls) {
    const comm::Phase phase = call.in_backward ? comm::Phase::Backward : comm::Phase::Forward;
    comm::Traffic::Count& count = want[{mesh.axes[call.axis].name, plan::name_of(call.movement), phase}];
    ++count.calls;
    count.bytes += static_cast<double>(call.bytes);
  }
  for (const auto& [key, count] : traffic.entries()) want[key];
  for (const auto& [key, count] : want) {
    const comm::Traffic::Count got = traffic.entries()[key];
    const auto& [group, collective, phase] = key;
    const std::string name = strategy.name + ": " + group + " " + collective + " " + comm::to_string(phase);
    EXPECT_EQ(got.calls, count.calls) << name;
    EXPECT_EQ(got.bytes, count.bytes) << name;
  }
}

/// Runs forward and backward of one strategy on this rank's blocks.
void expect_strategy(const Case& one, const TracedCase& made, const plan::Strategy& strategy, int64_t terms,
                     const MeshGroups& groups, comm::Traffic& traffic) {
  const NodeShare share = share_of(made.graph, made.node, strategy, groups.mesh);
  const std::string what = one.op + " " + strategy.name;
  std::vector<at::Tensor> blocks, read;
  traffic.reset();
  at::Tensor got;
  {
    const comm::PhaseScope phase(traffic, comm::Phase::Forward);
    for (size_t i = 0; i < made.operands.size(); ++i) {
      const at::Tensor block = block_of(made.operands[i].detach(), strategy.operands[i], groups).clone();
      blocks.push_back(block.contiguous().requires_grad_(made.operands[i].requires_grad()));
      read.push_back(read_block(share, i, blocks[i], groups));
    }
    got = run_on_blocks({made.graph, made.node, made.traced, strategy, share, groups}, read);
  }
  {
    const comm::PhaseScope phase(traffic, comm::Phase::Backward);
    got.backward(block_of(made.gradient, strategy.output, groups).contiguous());
  }
  test::expect_close(got.detach(), block_of(made.result.detach(), strategy.output, groups), terms, what);
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].requires_grad()) continue;
    const at::Tensor want = made.operands[i].grad();
    const int64_t sums = std::max(terms, made.gradient.numel());
    test::expect_within(blocks[i].grad(), block_of(want, strategy.operands[i], groups), test::tolerance(want, sums),
                        what + ": gradient of operand " + std::to_string(i));
  }
  expect_calls(strategy, groups.mesh, traffic);
}

/// Runs the operator under each of its strategies, forward and backward. Returns their names.
std::vector<std::string> expect_all_strategies(const Case& one, int64_t terms, const comm::RankOptions& options = {},
                                               int data = 2, int tensor = 2) {
  const TracedCase made = traced_case(one);
  const plan::Mesh axes{{{"data", data}, {"tensor", tensor}}};
  const std::vector<plan::Strategy> strategies = plan::strategies_of(made.graph, made.node, axes, {});
  comm::run_ranks(
      data * tensor,
      [&](comm::World& world) {
        comm::Mesh mesh(world, {{"data", data}, {"tensor", tensor}});
        const MeshGroups groups = groups_of(axes, mesh);
        for (const plan::Strategy& strategy : strategies)
          expect_strategy(one, made, strategy, terms, groups, world.traffic());
      },
      options);
  std::vector<std::string> names;
  for (const plan::Strategy& strategy : strategies) names.push_back(strategy.name);
  return names;
}

bool has_name(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Case linear() { return {"linear", "linear", "", {values({4, 6, 8}), values({4, 8}, 3), values({4}, 5)}, {0, 1, 2}}; }

TEST(RunOnBlocks, AddsTheBiasOfALinearLayerOnce) { expect_all_strategies(linear(), 8); }

TEST(RunOnBlocks, ScattersPartialSumsAndGathersInputs) {
  const std::vector<std::string> square = expect_all_strategies(linear(), 8);
  for (const char* name : {"tensor=in>dim1", "tensor=in>out", "data=in>dim0,tensor=in", "data=in,tensor=in>dim0",
                           "data=dim0,tensor=in>dim0", "tensor=out<dim1", "data=dim0,tensor=out<dim0",
                           "data=out<dim0,tensor=out", "data=out,tensor=out<dim0"})
    EXPECT_TRUE(has_name(square, name)) << name;
  EXPECT_TRUE(has_name(expect_all_strategies(linear(), 8, {}, 1, 2), "tensor=in>dim1"));
  EXPECT_TRUE(has_name(expect_all_strategies(linear(), 8, {}, 1, 4), "tensor=in>dim0"));
}

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
  const std::vector<std::string> names = expect_all_strategies(embedding, 1);
  for (const char* name : {"tensor=in", "data=dim0,tensor=in", "tensor=in>dim1", "data=in,tensor=in"})
    EXPECT_TRUE(has_name(names, name)) << name;
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
                           {0, 1, 2},
                           {1},
                           1,
                           {2}},
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

TEST(RunOnBlocks, DividesTheClassesOfALoss) {
  at::Tensor targets = at::arange(24, at::kLong).mul(5).remainder(8).view({8, 3});
  targets.narrow(0, 0, 3).narrow(1, 1, 2).fill_(-100);
  const auto loss = [&](const at::Tensor& logits, const at::Tensor& wanted, int64_t reduction) {
    return Case{"cross_entropy",
                "cross_entropy_loss",
                "",
                {logits, wanted, c10::IValue(), reduction, int64_t{-100}, 0.0},
                {0, 1}};
  };
  for (const int64_t reduction : {1, 2}) {
    const auto names = expect_all_strategies(loss(values({8, 8, 3}) * 3, targets, reduction), 24);
    for (const char* name :
         {"tensor=classes", "data=dim0,tensor=classes", "data=classes,tensor=classes", "data=classes,tensor=dim0"})
      EXPECT_TRUE(has_name(names, name)) << name;
    expect_all_strategies(loss(values({8, 8}), targets.select(1, 0), reduction), 8, {}, 1, 4);
    expect_all_strategies(loss(values({8, 8}), targets.select(1, 0), reduction), 8, {}, 1, 2);
  }
}

TEST(RunOnBlocks, KeepsTheClassesOfASmoothedLossWhole) {
  const Case smoothed{
      "cross_entropy",
      "cross_entropy_loss",
      "",
      {values({8, 4}), at::arange(8, at::kLong).remainder(4), c10::IValue(), int64_t{1}, int64_t{-100}, 0.1},
      {0, 1},
      {1}};
  EXPECT_FALSE(has_name(expect_all_strategies(smoothed, 8), "tensor=classes"));
}

TEST(RunOnBlocks, SumsStatisticsOfBatchNormOnlyInTraining) {
  const auto norm = [](bool training) {
    const c10::IValue mean = training ? c10::IValue() : c10::IValue(values({4}, 7)),
                      variance = training ? c10::IValue() : c10::IValue(values({4}, 9).abs() + 1);
    Case made{"batch_norm",
              "batch_norm",
              "",
              {values({4, 4, 3, 3}), values({4}, 3), values({4}, 5), mean, variance, training, 0.1, 1e-5, false},
              {0, 1, 2}};
    if (training) return made;
    made.op = "batch_norm_inference";
    made.order = {0, 1, 2, 3, 4};
    made.fixed = {3, 4};
    return made;
  };
  expect_all_strategies(norm(true), 36);
  EXPECT_TRUE(has_name(expect_all_strategies(norm(false), 36), "data=dim0,tensor=dim1"));
}

TEST(RunOnBlocks, AveragesOverAllRanks) {
  expect_all_strategies({"mse_loss", "mse_loss", "", {values({4, 8}), values({4, 8}, 3), int64_t{1}}, {0, 1}}, 32);
  expect_all_strategies(
      {"mean", "mean", "dim", {values({4, 8}), std::vector<int64_t>{1}, false, c10::IValue()}, {0}, {1}}, 8);
  const Case weighted{"binary_cross_entropy_with_logits",
                      "binary_cross_entropy_with_logits",
                      "",
                      {values({4, 8}), values({4, 8}, 3).abs(), values({8}, 5).abs(), c10::IValue(), int64_t{1}},
                      {0, 1, 2},
                      {},
                      1,
                      {2}};
  expect_all_strategies(weighted, 32);
}

TEST(RunOnBlocks, ReshapesBlocks) {
  const std::vector<int64_t> longer{4, 6, 4, 2}, merged{24, 8}, wide{4, 6, 8};
  expect_all_strategies({"reshape", "reshape", "", {values({4, 6, 8}), longer}, {0}}, 1);
  expect_all_strategies({"reshape", "reshape", "", {values({4, 6, 8}), merged}, {0}}, 1);
  expect_all_strategies({"expand", "expand", "", {values({6, 1}), wide, false}, {0}}, 1);
}

}  // namespace
}  // namespace colossal::auto_parallel::block_operators_test
