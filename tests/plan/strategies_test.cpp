// Strategies of operators: specs, collectives with their bytes, and what is refused.
#include "colossal/plan/strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "plan/small_graphs.h"

namespace colossal::plan::strategies_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const Mesh kMesh = parse_mesh("data=2,tensor=4");

Strategy named(const Graph& graph, const std::string& node, const std::string& name, const Mesh& mesh = kMesh) {
  for (const Strategy& strategy : strategies_of(graph, graph.index_of(node), mesh, {}))
    if (strategy.name == name) return strategy;
  ADD_FAILURE() << node << " has no strategy " << name;
  return {};
}

std::vector<std::string> names(const Graph& graph, const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies_of(graph, static_cast<int>(graph.nodes.size()) - 1, mesh, {}))
    names.push_back(strategy.name);
  return names;
}

/// Returns "all_reduce over data of x gradient: 12" of each call.
std::vector<std::string> calls(const Strategy& strategy) {
  std::vector<std::string> texts;
  for (const Call& call : strategy.calls)
    texts.push_back(concat(call.in_backward ? "backward " : "forward ", name_of(call.movement), " over ",
                           kMesh.axes[call.axis].name, " of ", call.tensor, ": ", call.bytes));
  return texts;
}

std::string specs(const Strategy& strategy) {
  std::string text;
  for (const Spec& spec : strategy.operands) text += print_spec(spec, kMesh) + " ";
  return text + "to " + print_spec(strategy.output, kMesh);
}

Graph one_operator(const std::string& op, const std::vector<std::vector<int64_t>>& inputs, std::vector<int64_t> output,
                   std::vector<int64_t> dims = {}) {
  test::GraphBuilder b;
  std::vector<std::string> names;
  for (const auto& shape : inputs) names.push_back(b.node("in" + std::to_string(names.size()), "input", {}, shape));
  b.node("out", op, names, std::move(output));
  b.made.nodes.back().dims = std::move(dims);
  return b.settled();
}

TEST(Strategies, SplitALinearLayerAsMegatronDoes) {
  const Graph graph = test::mlp(16, 8, 32);
  const Strategy column = named(graph, "fc1", "data=dim0,tensor=out");
  EXPECT_EQ(specs(column), "[data, R] [tensor, R] [tensor] to [data, tensor]");
  EXPECT_THAT(calls(column),
              UnorderedElementsAre("backward all_reduce over data of fc1.weight gradient: 256",  // 2 * 1/2 * 32*8*4/4
                                   "backward all_reduce over data of fc1.bias gradient: 32",
                                   "backward all_reduce over tensor of norm gradient: 384"));  // 2 * 3/4 * 16*8*4/2
  const Strategy row = named(graph, "fc2", "data=dim0,tensor=in");
  EXPECT_EQ(specs(row), "[data, tensor] [R, tensor] [R] to [data, R]");
  EXPECT_THAT(calls(row), UnorderedElementsAre("forward all_reduce over tensor of fc2: 384",
                                               "backward all_reduce over data of fc2.weight gradient: 256",
                                               "backward all_reduce over data of fc2.bias gradient: 32"))
      << "every rank along tensor has the whole gradient of the bias";
}

TEST(Strategies, DivideWorkAndMemory) {
  const Graph graph = test::mlp(16, 8, 32);
  const Strategy whole = named(graph, "fc1", "whole"), shared = named(graph, "fc1", "data=dim0,tensor=out");
  EXPECT_EQ(whole.operations, 3 * 2.0 * 16 * 8 * 32) << "forward, and both gradients";
  EXPECT_EQ(shared.operations, whole.operations / 8);
  EXPECT_EQ(shared.output_bytes, whole.output_bytes / 8);
  EXPECT_EQ(whole.parameter_bytes, (32 * 8 + 32) * (4 + 4 + 8));
  EXPECT_EQ(shared.parameter_bytes, whole.parameter_bytes / 4);
}

TEST(Strategies, LeaveOutWhatDoesNotDivide) {
  const Graph graph = test::mlp(16, 6, 32);
  for (const Strategy& strategy : strategies_of(graph, graph.index_of("fc1"), kMesh, {}))
    EXPECT_EQ(strategy.name.find("tensor=in"), std::string::npos) << "6 does not divide by 4";
}

TEST(Strategies, DivideRowsOfInputsByData) {
  const Graph graph = test::mlp(16, 8, 32);
  EXPECT_THAT(names(one_operator("input", {}, {4, 4}), kMesh), ElementsAre("data=dim0"));
  try {
    strategies_of(one_operator("input", {}, {7, 4}), 0, kMesh, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("must be a multiple of the axis data: got 7 in out on 2 ranks; the nearest are "
                                        "6 and 8"));
  }
  try {
    strategies_of(one_operator("input", {}, {1, 4}), 0, kMesh, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("got 1 in out on 2 ranks; the nearest is 2; "));
  }
}

TEST(Strategies, KeepDimensionsWholeThatAnOperatorNeeds) {
  const Mesh tensor = parse_mesh("tensor=2");
  EXPECT_THAT(names(one_operator("softmax", {{4, 6, 8}}, {4, 6, 8}, {2}), tensor),
              ElementsAre("whole", "tensor=dim0", "tensor=dim1"));
  EXPECT_THAT(
      names(one_operator("scaled_dot_product_attention", {{2, 4, 6, 8}, {2, 2, 6, 8}, {2, 2, 6, 8}}, {2, 4, 6, 8}),
            tensor),
      ElementsAre("whole", "tensor=dim0", "tensor=heads"));
  EXPECT_THAT(names(one_operator("nll_loss", {{4, 10}, {4}}, {}), tensor), ElementsAre("whole", "tensor=dim0"));
  EXPECT_THAT(names(one_operator("cross_entropy", {{4, 10}, {4, 10}}, {}), tensor), ElementsAre("whole", "tensor=dim0"))
      << "targets that are probabilities";
  EXPECT_THAT(names(one_operator("max_pool2d", {{4, 6, 8, 8}}, {4, 6, 4, 4}), tensor),
              ElementsAre("whole", "tensor=dim0", "tensor=dim1"));
  EXPECT_THAT(names(one_operator("cumsum", {{4, 6}}, {4, 6}), tensor), ElementsAre("whole")) << "unknown operators";
}

TEST(Strategies, FollowDimensionsThroughViews) {
  const Graph heads = one_operator("view", {{4, 8, 16}}, {4, 8, 4, 4});
  EXPECT_EQ(specs(named(heads, "out", "data=dim0,tensor=dim2")), "[data, R, tensor] to [data, R, tensor, R]");
  const Graph merged = one_operator("flatten", {{4, 8, 16}}, {32, 16});
  EXPECT_EQ(specs(named(merged, "out", "data=dim0,tensor=dim1")), "[data, R, tensor] to [data, tensor]");
  const Graph wide = one_operator("unsqueeze", {{4, 8}}, {4, 1, 8});
  EXPECT_EQ(specs(named(wide, "out", "data=dim0,tensor=dim2")), "[data, tensor] to [data, R, tensor]");
  const Graph turned = one_operator("permute", {{4, 8, 16}}, {16, 4, 8}, {2, 0, 1});
  EXPECT_EQ(specs(named(turned, "out", "data=dim1,tensor=dim0")), "[data, R, tensor] to [tensor, data, R]");
}

TEST(Strategies, AddPartialSums) {
  test::GraphBuilder b;
  b.parameter("weight", {12, 8});
  b.node("ids", "input", {}, {4, 6});
  b.made.nodes[0].output.dtype = "int64";
  b.node("out", "embedding", {"ids", "weight"}, {4, 6, 8});
  const Graph graph = b.settled();
  EXPECT_THAT(
      calls(named(graph, "out", "data=dim0,tensor=in")),
      ElementsAre("forward all_reduce over tensor of out: 576", "backward all_reduce over data of weight gradient: 96"))
      << "in the order of their execution";
  EXPECT_THAT(calls(named(graph, "out", "data=dim0,tensor=out")),
              ElementsAre("backward all_reduce over data of weight gradient: 96"));
}

TEST(Strategies, ScatterPartialSumsOfTheOutput) {
  const Graph graph = test::mlp(16, 8, 32);
  const Strategy rows = named(graph, "fc2", "data=dim0,tensor=in>dim0");
  EXPECT_EQ(specs(rows), "[data, tensor] [R, tensor] [R] to [data+tensor, R]");
  EXPECT_THAT(calls(rows), ElementsAre("forward reduce_scatter over tensor of fc2: 192",        // 3/4 * 16*8*4/2
                                       "backward all_gather over tensor of fc2 gradient: 192",  // 3 * 16*8*4/8
                                       "backward all_reduce over data of fc2.weight gradient: 256",
                                       "backward all_reduce over data of fc2.bias gradient: 32"));
  EXPECT_EQ(rows.calls[0].dim, 0);
  EXPECT_EQ(rows.calls[1].dim, 0);
  EXPECT_EQ(rows.output_bytes, 16 * 8 * 4 / 8);
  const Strategy reduced = named(graph, "fc2", "data=dim0,tensor=in");
  EXPECT_EQ(rows.call_bytes, reduced.call_bytes) << "an all_reduce is a reduce_scatter and an all_gather";
  EXPECT_EQ(rows.compute_seconds, reduced.compute_seconds);
  EXPECT_EQ(specs(named(graph, "fc2", "data=dim0,tensor=in>out")), "[data, tensor] [R, tensor] [R] to [data, tensor]");
}

TEST(Strategies, GatherBlocksOfTheFirstOperand) {
  const Graph graph = test::mlp(16, 8, 32);
  const Strategy gathered = named(graph, "fc1", "data=dim0,tensor=out<dim0");
  EXPECT_EQ(specs(gathered), "[data+tensor, R] [tensor, R] [tensor] to [data, tensor]");
  EXPECT_THAT(calls(gathered), ElementsAre("forward all_gather over tensor of norm: 192",
                                           "backward all_reduce over data of fc1.weight gradient: 256",
                                           "backward all_reduce over data of fc1.bias gradient: 32",
                                           "backward reduce_scatter over tensor of norm gradient: 192"));
  EXPECT_EQ(gathered.gathered_bytes, 16 * 8 * 4 / 2) << "the rank has the rows of its data block";
}

TEST(Strategies, DivideADimensionFurtherOnlyByLaterAxes) {
  for (const Strategy& strategy : strategies_of(test::mlp(16, 8, 32), 5, kMesh, {})) {
    EXPECT_NE(strategy.name, "data=in>dim0,tensor=dim0") << "data would make blocks inside those of tensor";
    const auto variants = std::count(strategy.name.begin(), strategy.name.end(), '>') +
                          std::count(strategy.name.begin(), strategy.name.end(), '<');
    EXPECT_LE(variants, 1) << strategy.name;
  }
}

TEST(Strategies, DivideTheClassesOfALoss) {
  const Graph graph = one_operator("cross_entropy", {{4, 12}, {4}}, {});
  const Strategy classes = named(graph, "out", "data=dim0,tensor=classes");
  EXPECT_EQ(specs(classes), "[data, tensor] [data] to []");
  EXPECT_THAT(calls(classes), ElementsAre("forward all_reduce over tensor of out row maxima: 12",  // 2 * 3/4 * 2*4
                                          "forward all_reduce over tensor of out row sums: 24",
                                          "forward all_reduce over data of out: 8"))
      << "the sum of the losses and the number of rows";
}

TEST(Strategies, SumTheStatisticsOfBatchNorm) {
  test::GraphBuilder b;
  b.parameter("w", {8});
  b.parameter("b", {8});
  b.node("x", "input", {}, {4, 8, 2, 2});
  b.node("out", "batch_norm", {"x", "w", "b"}, {4, 8, 2, 2});
  EXPECT_THAT(
      calls(named(b.settled(), "out", "data=dim0,tensor=dim1")),
      ElementsAre("forward all_reduce over data of out statistics: 16",
                  "backward all_reduce over data of out statistics: 16",
                  "backward all_reduce over data of w gradient: 8", "backward all_reduce over data of b gradient: 8"));
}

TEST(Strategies, SumStatisticsAtLeastInFp32) {
  for (const auto& [dtype, bytes] : {std::pair("bfloat16", 64), std::pair("float64", 128)}) {
    test::GraphBuilder b(dtype);
    b.node("x", "input", {}, {4, 8, 2, 2});
    b.node("out", "batch_norm", {"x"}, {4, 8, 2, 2});
    EXPECT_THAT(calls(named(b.settled(), "out", "data=dim0")),
                ElementsAre(concat("forward all_reduce over data of out statistics: ", bytes)));
  }
}

TEST(Strategies, SumTheWeightsOfRowsWithALossOverClasses) {
  const Graph classes = one_operator("cross_entropy", {{4, 10}, {4}}, {}),
              points = one_operator("mse_loss", {{4}, {4}}, {});
  EXPECT_THAT(calls(named(classes, "out", "data=dim0")), ElementsAre("forward all_reduce over data of out: 8"));
  EXPECT_THAT(calls(named(points, "out", "data=dim0")), ElementsAre("forward all_reduce over data of out: 4"));
}

TEST(Strategies, DoNotSumPartsOfAnExtremum) {
  const Mesh tensor = parse_mesh("tensor=2");
  EXPECT_THAT(names(one_operator("amax", {{4, 6}}, {4}, {1}), tensor), ElementsAre("whole", "tensor=dim0"));
  EXPECT_THAT(names(one_operator("sum", {{4, 6}}, {4}, {1}), tensor),
              ElementsAre("whole", "tensor=dim0", "tensor=dim1"));
}

TEST(Strategies, LeavePositionsOfAnAttentionMaskWhole) {
  const Graph graph = one_operator("scaled_dot_product_attention",
                                   {{2, 4, 6, 8}, {2, 4, 6, 8}, {2, 4, 6, 8}, {2, 1, 6, 6}}, {2, 4, 6, 8});
  EXPECT_EQ(specs(named(graph, "out", "data=dim0,tensor=heads")),
            "[data, tensor, R, R] [data, tensor, R, R] [data, tensor, R, R] [data, R, R, R] to [data, tensor, R, R]");
}

TEST(Strategies, SplitConvolutionsByRowsAndChannels) {
  test::GraphBuilder b;
  b.parameter("w", {8, 4, 3, 3});
  b.node("x", "input", {}, {4, 4, 6, 6});
  b.node("out", "conv2d", {"x", "w"}, {4, 8, 6, 6});
  const Graph graph = b.settled();
  EXPECT_EQ(specs(named(graph, "out", "data=dim0,tensor=out")),
            "[data, R, R, R] [tensor, R, R, R] to [data, tensor, R, R]");
  EXPECT_EQ(specs(named(graph, "out", "data=dim0,tensor=in")),
            "[data, tensor, R, R] [R, tensor, R, R] to [data, R, R, R]");
  EXPECT_EQ(named(graph, "out", "whole").operations, 2 * 2.0 * 4 * 8 * 36 * 36) << "the input has no gradient";
}

TEST(Strategies, RefuseOperandsThatDoNotFit) {
  test::GraphBuilder b;
  b.parameter("w", {8, 5});
  b.node("x", "input", {}, {4, 4});
  b.node("out", "linear", {"x", "w"}, {4, 8});
  try {
    strategies_of(b.settled(), 1, kMesh, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("node out (linear): the dimensions of `in` must have one size: got [4, 4], [8, 5] "
                          "to [4, 8]"));
  }
  EXPECT_THROW(strategies_of(one_operator("matmul", {{2, 2}}, {2, 2}), 1, kMesh, {}), Error);
  EXPECT_THROW(strategies_of(one_operator("view", {{2, 2}}, {3}), 1, kMesh, {}), Error);
}

TEST(Strategies, CoverEveryNamedOperator) {
  for (const std::string& name : operator_names()) {
    const Graph graph = one_operator(name, {{2, 2}, {2, 2}}, {2, 2}, {0});
    try {
      EXPECT_TRUE(index_operator(graph, 2).is_known) << name;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("node out (" + name + ")"));
    }
  }
}

}  // namespace
}  // namespace colossal::plan::strategies_test
