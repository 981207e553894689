// Plans of transformers that are known: Megatron's split, pure data parallelism, a divided vocabulary.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "colossal/base/error.h"
#include "colossal/plan/solver.h"
#include "plan/small_graphs.h"

namespace colossal::plan::transformer_plan_test {
namespace {

constexpr int64_t kBf16Bytes = 2;

/// Returns a layer of GPT with one linear layer for queries, keys and values of each head, and a squared error.
Graph gpt_layer(int64_t batch, int64_t sequence, int64_t hidden, int64_t heads) {
  test::GraphBuilder b("bfloat16");
  const std::vector<int64_t> rows{batch, sequence, hidden};
  const int64_t size = hidden / heads;
  const auto linear = [&](const std::string& name, const std::string& from, int64_t in, int64_t out) {
    b.parameter(name + ".weight", {out, in});
    b.parameter(name + ".bias", {out});
    return b.node(name, "linear", {from, name + ".weight", name + ".bias"}, {batch, sequence, out});
  };
  const auto norm = [&](const std::string& name, const std::string& from) {
    b.parameter(name + ".weight", {hidden});
    b.parameter(name + ".bias", {hidden});
    return b.node(name, "layer_norm", {from, name + ".weight", name + ".bias"}, rows);
  };
  b.node("x", "input", {}, rows);
  b.node("y", "input", {}, rows);
  linear("qkv", norm("norm1", "x"), hidden, 3 * hidden);
  b.node("by_head", "view", {"qkv"}, {batch, sequence, heads, 3 * size});
  std::vector<std::string> parts;
  for (const std::string part : {"q", "k", "v"}) {
    b.node(part + "_rows", "slice", {"by_head"}, {batch, sequence, heads, size});
    b.made.nodes.back().dims = {3};
    parts.push_back(b.node(part, "transpose", {part + "_rows"}, {batch, heads, sequence, size}));
    b.made.nodes.back().dims = {1, 2};
  }
  b.node("attention", "scaled_dot_product_attention", parts, {batch, heads, sequence, size});
  b.made.nodes.back().causal = true;
  b.node("attention_rows", "transpose", {"attention"}, {batch, sequence, heads, size});
  b.made.nodes.back().dims = {1, 2};
  b.node("attention_flat", "view", {"attention_rows"}, rows);
  b.node("add1", "add", {"x", linear("out", "attention_flat", hidden, hidden)}, rows);
  b.node("gelu", "gelu", {linear("fc1", norm("norm2", "add1"), hidden, 4 * hidden)}, {batch, sequence, 4 * hidden});
  b.node("add2", "add", {"add1", linear("fc2", "gelu", 4 * hidden, hidden)}, rows);
  b.node("loss", "mse_loss", {"add2", "y"}, {});
  return b.settled();
}

const Strategy& strategy_of(const Plan& plan, const Graph& graph, const std::string& node) {
  return plan.strategies[static_cast<size_t>(graph.index_of(node))];
}

std::string weight_spec(const Plan& plan, const Graph& graph, const std::string& node) {
  return print_spec(strategy_of(plan, graph, node).operands[1], plan.mesh);
}

/// Returns the bytes that a rank sends for the activations of a plan: all but gradients of parameters and the loss.
int64_t activation_bytes(const Plan& plan, const Graph& graph) {
  std::set<std::string> parameters{"loss"};
  for (const Parameter& parameter : graph.parameters) parameters.insert(parameter.name + " gradient");
  int64_t bytes = 0;
  for (const Strategy& strategy : plan.strategies)
    for (const Call& call : strategy.calls)
      if (parameters.count(call.tensor) == 0) bytes += call.bytes;
  for (const PlannedConversion& made : plan.conversions) bytes += made.forward.bytes + made.backward.bytes;
  return bytes;
}

TEST(TransformerPlan, EqualsMegatronsOnTensorRanks) {
  for (const int64_t p : {2, 4, 8}) {
    const int64_t sequence = 2048, hidden = 4096;
    const Graph graph = gpt_layer(1, sequence, hidden, 32);
    const Mesh mesh = parse_mesh(concat("data=1,tensor=", p));
    const Plan whole = solve(graph, parse_mesh("data=1"), {}, {});
    for (const int64_t memory : {int64_t{0}, whole.parameter_bytes}) {  // the limit: weights too large to replicate
      const Plan plan = solve(graph, mesh, {}, {.memory = memory});
      for (const char* column : {"qkv", "fc1"}) EXPECT_EQ(weight_spec(plan, graph, column), "[tensor, R]") << p;
      for (const char* row : {"out", "fc2"}) EXPECT_EQ(weight_spec(plan, graph, row), "[R, tensor]") << p;
      EXPECT_EQ(activation_bytes(plan, graph), 8 * (p - 1) * sequence * hidden / p * kBf16Bytes) << p;
      EXPECT_TRUE(plan.is_proven);
    }
  }
}

TEST(TransformerPlan, ScattersBetweenTheHalvesOfALayer) {
  const Graph graph = gpt_layer(1, 2048, 4096, 32);
  const Mesh mesh = parse_mesh("tensor=8");
  Links links;
  links.start = 1e-7;  // a scatter and a gather start one operator more than an all_reduce
  links.axes = {{1e-7, 4e11}};
  const Plan plan = solve(graph, mesh, links, {});
  EXPECT_EQ(strategy_of(plan, graph, "norm2").name, "tensor=dim1") << "norms divide the positions";
  EXPECT_EQ(strategy_of(plan, graph, "fc1").name, "tensor=out<dim1");
  EXPECT_EQ(strategy_of(plan, graph, "out").name, "tensor=in>dim1");
  std::vector<std::string> plain;
  for (const Strategy& strategy : plan.strategies) plain.push_back(strategy.name);
  for (std::string& name : plain) {
    if (name.find_first_of("<>") != std::string::npos) name = name.substr(0, name.find_first_of("<>"));
    if (name == "tensor=dim1") name = "whole";
  }
  const auto at = [&](const char* node) -> std::string& { return plain[static_cast<size_t>(graph.index_of(node))]; };
  at("gelu") = "tensor=dim2";
  for (const char* node : {"q", "k", "v"}) at(node) = "tensor=dim1";
  at("attention") = "tensor=heads";
  const Plan megatron = price_plan(graph, mesh, links, plain);
  EXPECT_LT(plan.seconds, megatron.seconds);
  EXPECT_LT(plan.peak_bytes, megatron.peak_bytes);
  EXPECT_EQ(activation_bytes(megatron, graph), activation_bytes(plan, graph)) << "the same bytes, in halves";
}

TEST(TransformerPlan, EqualsDataParallelismWithSmallWeights) {
  const Graph graph = gpt_layer(4096, 64, 64, 4);
  for (const int64_t p : {2, 4, 8}) {
    const Plan plan = solve(graph, parse_mesh(concat("data=", p)), {}, {});
    EXPECT_TRUE(plan.is_proven);
    EXPECT_TRUE(plan.conversions.empty());
    for (size_t i = 0; i < graph.nodes.size(); ++i) EXPECT_EQ(plan.strategies[i].name, "data=dim0");
    int64_t weights = 0;
    for (const Parameter& parameter : graph.parameters) weights += parameter.type.bytes();
    EXPECT_EQ(plan.call_bytes, 2 * (p - 1) * weights / p + 2 * (p - 1) * kBf16Bytes / p) << "with that of the loss";
  }
}

TEST(TransformerPlan, DividesALargeVocabulary) {
  const test::DecoderSizes sizes{.batch = 1,
                                 .sequence = 512,
                                 .hidden = 256,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .inner = 512,
                                 .vocabulary = 128000,
                                 .layers = 1};
  const Graph graph = test::decoder(sizes);
  const Mesh mesh = parse_mesh("tensor=4");
  const Plan plan = solve(graph, mesh, {}, {});
  EXPECT_EQ(weight_spec(plan, graph, "head"), "[tensor, R]");
  EXPECT_EQ(strategy_of(plan, graph, "loss").name, "tensor=classes");
  const Plan rows = solve(graph, mesh, {}, {.annotate = {{"embedding.weight", "[tensor, R]"}}});
  EXPECT_EQ(strategy_of(rows, graph, "embedding").name.substr(0, 9), "tensor=in");
  const int64_t tables = 2 * sizes.vocabulary * sizes.hidden;
  EXPECT_LT(rows.parameter_bytes, tables * (2 * kBf16Bytes + kAdamStateBytes) / 2) << "both tables are divided";
}

TEST(TransformerPlan, ProvesThePlanOfALargeModelWithALimit) {
  test::DecoderSizes sizes;
  sizes.layers = 4;
  const Graph graph = test::decoder(sizes);
  const Mesh mesh = parse_mesh("data=8,tensor=8");
  const Plan free = solve(graph, mesh, {}, {});
  EXPECT_TRUE(free.is_proven);
  double before = free.seconds;
  for (const int64_t percent : {80, 60, 50}) {
    const Plan limited = solve(graph, mesh, {}, {.memory = free.peak_bytes * percent / 100});
    EXPECT_LE(limited.peak_bytes, free.peak_bytes * percent / 100);
    EXPECT_TRUE(limited.is_proven) << percent << " %: " << limited.seconds << " s, at least " << limited.lower_bound;
    EXPECT_GT(limited.seconds, before) << "the limit must bind, or nothing is tested";
    before = limited.seconds;
  }
}

}  // namespace
}  // namespace colossal::plan::transformer_plan_test
