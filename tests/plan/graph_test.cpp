// graph.json: what is written is read again, and what is wrong is refused by name.
#include "colossal/plan/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "plan/small_graphs.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::plan::graph_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  return colossal::test::thrown_message([&] { parse_graph(text, "g.json"); });
}

std::string with_nodes(const std::string& nodes) {
  return R"({"format": "colossal-graph", "version": 1, "parameters": [{"name": "w", "shape": [4, 8]}], "nodes": [)" +
         nodes + "]}";
}

TEST(Graph, ReadsWhatItWrites) {
  Graph graph = test::mlp(8, 16, 32, "bfloat16");
  graph.nodes[0].whole = true;
  graph.parameters[1].trains = false;
  graph.nodes[2].dims = {1};
  graph.settle();
  const colossal::test::TemporaryFolder folder;
  write_graph(graph, folder / "graph.json");
  const Graph read = read_graph(folder / "graph.json");
  EXPECT_EQ(read.parameters, graph.parameters);
  EXPECT_EQ(read.nodes, graph.nodes);
  EXPECT_EQ(read.operands, graph.operands);
  EXPECT_EQ(print_graph(read), print_graph(graph));
}

TEST(Graph, FindsConsumersAndGradients) {
  const Graph graph = test::mlp(8, 16, 32);
  const int norm = graph.index_of("norm"), fc1 = graph.index_of("fc1");
  EXPECT_THAT(graph.consumers[norm], ElementsAre(fc1));
  EXPECT_FALSE(graph.needs_gradient[graph.index_of("x")]);
  EXPECT_TRUE(graph.needs_gradient[norm]);
  EXPECT_TRUE(graph.needs_gradient[graph.index_of("loss")]);
}

TEST(Graph, NeedsNoGradientOfFrozenParametersAndIntegers) {
  Graph graph = test::mlp(8, 16, 32);
  for (Parameter& parameter : graph.parameters) parameter.trains = false;
  graph.settle();
  EXPECT_THAT(graph.needs_gradient, ::testing::Each(false));
}

TEST(Graph, RefusesWhatIsNoGraph) {
  EXPECT_THAT(refusal("[]"), HasSubstr("g.json: the file must be a JSON object"));
  EXPECT_THAT(refusal(R"({"format": "x"})"), HasSubstr("`format` must be \"colossal-graph\": got \"x\""));
  EXPECT_THAT(refusal(R"({"format": "colossal-graph", "version": 2})"), HasSubstr("`version` must be 1: got 2"));
  EXPECT_THAT(refusal(R"({"format": "colossal-graph", "version": 1, "node": []})"),
              HasSubstr("unknown member `node`, did you mean `nodes`?"));
  EXPECT_THAT(refusal(with_nodes("")), HasSubstr("a graph must have a node"));
}

TEST(Graph, RefusesNodesByName) {
  const std::string x = R"({"name": "x", "op": "input", "shape": [2, 8]})";
  EXPECT_THAT(refusal(with_nodes(x + "," + x)), HasSubstr("x is given twice"));
  EXPECT_THAT(refusal(with_nodes(x + R"(,{"name": "a", "op": "relu", "inputs": ["xx"], "shape": [2, 8]})")),
              HasSubstr("node a reads xx, did you mean `x`?"));
  EXPECT_THAT(refusal(with_nodes(R"({"name": "a", "op": "relu", "inputs": ["a"], "shape": [2]})")),
              HasSubstr("inputs must be parameters or earlier nodes"));
  EXPECT_THAT(refusal(with_nodes(R"({"name": "a", "op": "input"})")), HasSubstr("node 0 (a): `shape` is missing"));
  EXPECT_THAT(refusal(with_nodes(R"({"name": "a", "op": "input", "shape": [2], "size": 1})")),
              HasSubstr("g.json: node 0"));
  EXPECT_THAT(refusal(with_nodes(R"({"name": "a", "op": "input", "shape": [2], "dtype": "float33"})")),
              HasSubstr("must be a dtype of PyTorch: got `float33`"));
  EXPECT_THAT(refusal(with_nodes(R"({"name": "a", "op": "input", "shape": [1099511627776, 1099511627776]})")),
              HasSubstr("at most 2^56 elements"));
  EXPECT_THAT(refusal(with_nodes(R"({"name": "a", "op": "input", "shape": [2], "dims": [1]})")),
              HasSubstr("`dims` must be below the number of dimensions, 1"));
}

TEST(Graph, SuggestsTheNearestNode) {
  try {
    test::mlp(8, 16, 32).index_of("fc3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no node is named fc3, did you mean `fc1`?"));
  }
}

TEST(Graph, NeedsNoGradientBehindADetach) {
  test::GraphBuilder b;
  b.parameter("first", {4, 4});
  b.parameter("second", {4, 4});
  b.node("x", "input", {}, {2, 4});
  b.node("kept", "linear", {"x", "first"}, {2, 4});
  b.node("detached", "detach", {"kept"}, {2, 4});
  b.node("read", "linear", {"detached", "second"}, {2, 4});
  b.node("loss", "mean", {"read"}, {});
  const Graph graph = b.settled();
  EXPECT_EQ(graph.needs_gradient, (std::vector<bool>{false, false, false, true, true}))
      << "no gradient of the loss reaches the first linear layer";
}

}  // namespace
}  // namespace colossal::plan::graph_test
