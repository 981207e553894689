// Plans of small modules: known optima, memory limits, annotations, and comparison with trying all plans.
#include "colossal/plan/solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "colossal/base/error.h"
#include "colossal/plan/plan_problem.h"
#include "plan/small_graphs.h"
#include "support/thrown_message.h"

namespace colossal::plan::solver_test {
namespace {

using ::testing::HasSubstr;

std::string strategy(const Plan& plan, const Graph& graph, const std::string& node) {
  return plan.strategies[graph.index_of(node)].name;
}

std::vector<std::string> names(const Plan& plan) {
  std::vector<std::string> names;
  for (const Strategy& strategy : plan.strategies) names.push_back(strategy.name);
  return names;
}

TEST(Solve, FindsMegatronsSplitOfAnMlp) {
  const Graph graph = test::mlp(4096, 4096, 16384, "bfloat16");
  const Plan plan = solve(graph, parse_mesh("tensor=4"), {}, {});
  EXPECT_TRUE(plan.is_proven);
  EXPECT_EQ(strategy(plan, graph, "fc1"), "tensor=out");
  EXPECT_EQ(strategy(plan, graph, "gelu"), "tensor=dim1");
  EXPECT_EQ(strategy(plan, graph, "fc2").substr(0, 9), "tensor=in") << "all-reduced, or scattered for the loss";
  const int64_t all_reduce = 2 * 3 * (4096 * 4096 * 2) / 4;
  int64_t sent = 0;
  for (const char* node : {"fc1", "gelu", "fc2"}) sent += plan.strategies[graph.index_of(node)].call_bytes;
  EXPECT_EQ(sent, 2 * all_reduce) << "one in forward, one in backward";
}

TEST(Solve, FindsPureDataParallelism) {
  const Graph graph = test::mlp(1 << 20, 64, 64);
  const Plan plan = solve(graph, parse_mesh("data=4"), {}, {});
  for (const char* node : {"norm", "fc1", "gelu", "fc2", "loss"}) EXPECT_EQ(strategy(plan, graph, node), "data=dim0");
  EXPECT_TRUE(plan.conversions.empty());
}

TEST(Solve, EqualsTryingAllPlansWithinAnyLimit) {
  const Graph graph = test::mlp(64, 16, 32);
  const Mesh mesh = parse_mesh("data=2,tensor=2");
  Links links;
  links.start = 1e-7;
  links.axes = {{1e-7, 1e8}, {1e-7, 1e9}};
  const PlanProblem problem = make_problem(graph, mesh, links, {});
  std::vector<std::pair<int64_t, double>> all;  // peak and seconds
  std::vector<int> choices(problem.choices.variables.size(), 0);
  for (bool more = true; more;) {
    const auto live = problem.choices.live_of(choices);
    all.push_back({*std::max_element(live.begin(), live.end()), problem.choices.cost_of(choices)});
    size_t i = 0;
    while (i < choices.size() && ++choices[i] == static_cast<int>(problem.choices.variables[i].cost.size()))
      choices[i++] = 0;
    more = i < choices.size();
  }
  const int64_t least = std::min_element(all.begin(), all.end())->first;
  const int64_t most = solve(graph, mesh, links, {}).peak_bytes;
  for (const int64_t limit :
       {least, least + (most - least) / 4, least + (most - least) / 2, most - 1, most, most * 2}) {
    double best = kForbidden;
    for (const auto& [peak, seconds] : all)
      if (peak <= limit) best = std::min(best, seconds);
    const Plan plan = solve(graph, mesh, links, {.memory = limit});
    EXPECT_LE(plan.peak_bytes, limit);
    EXPECT_NEAR(plan.seconds, best, 1e-9 * best);
    EXPECT_TRUE(plan.is_proven);
  }
  EXPECT_THAT(colossal::test::thrown_message([&] { solve(graph, mesh, links, {.memory = least - 1}); }),
              HasSubstr("no plan fits the memory of a rank"));
}

/// Returns a graph of at most eight nodes: linear layers, sums, products and activations of earlier values.
Graph random_graph(std::mt19937& random) {
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(random); };
  test::GraphBuilder b;
  const std::vector<int64_t> shape{4, draw(0, 3) == 0 ? 6 : 8};
  std::vector<std::string> values{b.node("x", "input", {}, shape)};
  const auto any = [&] { return values[static_cast<size_t>(draw(0, static_cast<int>(values.size()) - 1))]; };
  int linear = 0;
  for (int i = draw(2, 6); i > 0; --i) {
    const std::string name = "n" + std::to_string(i);
    const int kind = draw(0, linear < 2 ? 3 : 1);
    if (kind >= 2) {
      ++linear;
      b.parameter(name + ".weight", {shape[1], shape[1]});
      values.push_back(b.node(name, "linear", {values.back(), name + ".weight"}, shape));
    } else if (kind == 1) {
      values.push_back(b.node(name, "mul", {values.back(), any()}, shape));
    } else {
      values.push_back(b.node(name, "relu", {values.back()}, shape));
    }
  }
  b.node("loss", "mean", {values.back()}, {});
  return b.settled();
}

/// Returns peak and seconds of every plan. Memory comes from the problem, seconds from strategies and conversions.
std::vector<std::pair<int64_t, double>> all_plans(const Graph& graph, const Mesh& mesh, const Links& links) {
  const PlanProblem problem = make_problem(graph, mesh, links, {.share_blocks = false});
  Conversions conversions(mesh, links);
  std::vector<std::pair<int64_t, double>> all;
  std::vector<int> choices(problem.choices.variables.size(), 0);
  for (bool more = true; more;) {
    const auto of = [&](size_t node) -> const Strategy& {
      return problem.strategies[node][static_cast<size_t>(choices[static_cast<size_t>(problem.node_variable[node])])];
    };
    double seconds = 0;
    for (size_t node = 0; node < graph.nodes.size(); ++node) {
      seconds += of(node).seconds();
      for (size_t i = 0; i < graph.operands[node].size(); ++i) {
        const Source source = graph.operands[node][i];
        if (source.is_parameter) continue;
        const auto from = static_cast<size_t>(source.index);
        const Spec &made = of(from).output, &read = of(node).operands[i];
        seconds += conversions.get(graph.nodes[from].output, made, read).seconds;
        if (graph.needs_gradient[from] && graph.needs_gradient[node])
          seconds += conversions.get(graph.nodes[from].output, read, made).seconds;
      }
    }
    const auto live = problem.choices.live_of(choices);
    all.push_back({*std::max_element(live.begin(), live.end()), seconds});
    size_t i = 0;
    while (i < choices.size() && ++choices[i] == static_cast<int>(problem.choices.variables[i].cost.size()))
      choices[i++] = 0;
    more = i < choices.size();
  }
  return all;
}

TEST(Solve, EqualsTryingAllPlansOfRandomGraphs) {
  std::mt19937 random(7);
  const Mesh mesh = parse_mesh("tensor=2");
  int limited = 0, impossible = 0;
  for (int round = 0; round < 40; ++round) {
    const Graph graph = random_graph(random);
    Links links;
    links.start = 1e-8;
    links.operations = 1e10;
    links.axes = {{1e-8, 1e8}, {1e-8, std::uniform_int_distribution<int>(1, 20)(random) * 1e9}};
    const auto all = all_plans(graph, mesh, links);
    const auto [least, most] = std::minmax_element(all.begin(), all.end());
    for (int i = 0; i < 3; ++i) {
      const int64_t limit = std::uniform_int_distribution<int64_t>(least->first * 9 / 10, most->first)(random);
      double best = kForbidden, fastest = kForbidden;
      for (const auto& [peak, seconds] : all) {
        fastest = std::min(fastest, seconds);
        if (peak <= limit) best = std::min(best, seconds);
      }
      if (best == kForbidden) {
        ++impossible;
        EXPECT_THAT(colossal::test::thrown_message([&] { solve(graph, mesh, links, {.memory = limit}); }),
                    HasSubstr("no plan fits"));
        continue;
      }
      const Plan plan = solve(graph, mesh, links, {.memory = limit});
      const double tolerance = 4 * std::numeric_limits<double>::epsilon() * static_cast<double>(all.size()) * best;
      EXPECT_NEAR(plan.seconds, best, tolerance) << round;
      EXPECT_LE(plan.peak_bytes, limit);
      EXPECT_TRUE(plan.is_proven);
      limited += best > fastest ? 1 : 0;
    }
  }
  EXPECT_GT(limited, 10) << "the limit must matter, or nothing is tested";
  EXPECT_GT(impossible, 5);
}

TEST(Solve, PricesItsPlanLikePricePlan) {
  const Graph graph = test::mlp(64, 16, 32);
  const Mesh mesh = parse_mesh("data=2,tensor=2");
  const Plan plan = solve(graph, mesh, {}, {});
  const Plan priced = price_plan(graph, mesh, {}, names(plan));
  EXPECT_DOUBLE_EQ(priced.seconds, plan.seconds);
  EXPECT_EQ(priced.peak_bytes, plan.peak_bytes);
  EXPECT_EQ(priced.parameter_bytes, plan.parameter_bytes);
  EXPECT_EQ(priced.call_bytes, plan.call_bytes);
}

TEST(Solve, CountsMemoryOfOneRankByHand) {
  const Graph graph = test::mlp(8, 4, 16);
  const Plan plan = solve(graph, parse_mesh("data=1"), {}, {});
  const int64_t parameters = (4 + 16 * 4 + 16 + 4 * 16 + 4) * 16;
  EXPECT_EQ(plan.parameter_bytes, parameters);
  const int64_t narrow = 8 * 4 * 4, wide = 8 * 16 * 4;
  // Backward of gelu: x, norm, fc1 and its gradient, the gradient of gelu. y, gelu and fc2 have been freed, gelu after
  // the backward pass of fc2, which is as full: gelu and its gradient, the gradient of fc2, and all of x, norm, fc1.
  EXPECT_EQ(plan.peak_bytes, parameters + 3 * narrow + 3 * wide);
}

TEST(Solve, KeepsAnnotatedSpecs) {
  const Graph graph = test::mlp(64, 16, 32);
  const Mesh mesh = parse_mesh("data=2,tensor=2");
  const Plan plan = solve(graph, mesh, {}, {.annotate = {{"fc1.weight", "[R, tensor]"}, {"gelu", "[R, R]"}}});
  EXPECT_EQ(print_spec(plan.strategies[graph.index_of("fc1")].operands[1], mesh), "[R, tensor]");
  EXPECT_EQ(strategy(plan, graph, "gelu"), "whole");
  EXPECT_FALSE(plan.conversions.empty());
  EXPECT_THAT(colossal::test::thrown_message([&] { solve(graph, mesh, {}, {.annotate = {{"fc1.wight", "[R, R]"}}}); }),
              HasSubstr("got fc1.wight, did you mean `fc1.weight`?"));
  EXPECT_THAT(
      colossal::test::thrown_message([&] { solve(graph, mesh, {}, {.annotate = {{"norm.weight", "[tensor]"}}}); }),
      HasSubstr("got [tensor] for norm.weight; the legal ones are [R]"));
}

TEST(Solve, GivesASharedParameterOneSpec) {
  test::GraphBuilder b;
  b.parameter("table", {512, 64});
  b.node("ids", "input", {}, {8, 16});
  b.made.nodes[0].output.dtype = "int64";
  b.node("tokens", "embedding", {"ids", "table"}, {8, 16, 64});
  b.node("logits", "linear", {"tokens", "table"}, {8, 16, 512});
  b.node("mean", "mean", {"logits"}, {});
  const Graph graph = b.settled();
  const Mesh mesh = parse_mesh("data=2,tensor=4");
  const Plan plan = solve(graph, mesh, {}, {.annotate = {{"table", "[tensor, R]"}}});
  EXPECT_EQ(plan.strategies[1].operands[1], plan.strategies[2].operands[1]);
  EXPECT_EQ(plan.parameter_bytes, 512 * 64 * 16 / 4) << "counted once";
  EXPECT_THAT(colossal::test::thrown_message(
                  [&] { price_plan(graph, mesh, {}, {"data=dim0", "tensor=in", "tensor=in", "whole"}); }),
              HasSubstr("nodes that read one parameter must read it under one spec"));
}

TEST(Solve, RepeatedBlocksShareAStrategy) {
  test::GraphBuilder b;
  std::string last = b.node("x", "input", {}, {64, 32});
  for (int i = 0; i < 6; ++i) {
    const std::string block = "layers." + std::to_string(i) + ".";
    b.parameter(block + "up.weight", {128, 32});
    b.parameter(block + "down.weight", {32, 128});
    const std::string up = b.node(block + "up", "linear", {last, block + "up.weight"}, {64, 128});
    const std::string down = b.node(block + "down", "linear", {up, block + "down.weight"}, {64, 32});
    last = b.node(block + "add", "add", {last, down}, {64, 32});
  }
  b.node("mean", "mean", {last}, {});
  const Graph graph = b.settled();
  const Mesh mesh = parse_mesh("data=2,tensor=4");
  const Plan shared = solve(graph, mesh, {}, {}), free = solve(graph, mesh, {}, {.share_blocks = false});
  for (int i = 1; i < 6; ++i)
    for (const std::string node : {"up", "down", "add"})
      EXPECT_EQ(strategy(shared, graph, "layers." + std::to_string(i) + "." + node),
                strategy(shared, graph, "layers.0." + node));
  EXPECT_LE(free.seconds, shared.seconds * (1 + 1e-9));
  EXPECT_LT(make_problem(graph, mesh, {}, {}).choices.variables.size(),
            make_problem(graph, mesh, {}, {.share_blocks = false}).choices.variables.size());
}

TEST(PricePlan, RefusesStrategiesThatANodeDoesNotHave) {
  const Graph graph = test::mlp(64, 16, 32);
  std::vector<std::string> strategies(graph.nodes.size(), "whole");
  strategies[0] = strategies[1] = "data=dim0";
  strategies[3] = "tensor=heads";
  EXPECT_THAT(
      colossal::test::thrown_message([&] { price_plan(graph, parse_mesh("data=2"), {}, strategies); }),
      HasSubstr("node fc1 has no strategy `tensor=heads` on the mesh data=2,tensor=1; the legal ones are whole; "
                "data=dim0"));
}

}  // namespace
}  // namespace colossal::plan::solver_test
