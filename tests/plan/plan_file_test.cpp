// plan.json: what is written is read again, and plans of other graphs are refused.
#include "colossal/plan/plan_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "plan/small_graphs.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::plan::plan_file_test {
namespace {

using ::testing::HasSubstr;

std::string refusal(const std::string& text, const Graph& graph) {
  return colossal::test::thrown_message([&] { parse_plan(text, "p.json", graph); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanFile, ReadsWhatItWrites) {
  const Graph graph = test::mlp(64, 16, 32);
  const Plan plan = solve(graph, parse_mesh("data=2,tensor=4"), {}, {});
  const colossal::test::TemporaryFolder folder;
  write_plan(plan, graph, folder / "plan.json");
  const PlanFile file = read_plan(folder / "plan.json", graph);
  EXPECT_EQ(file.mesh, plan.mesh);
  const Plan read = price_plan(graph, file.mesh, {}, file.strategies);
  EXPECT_EQ(print_plan(read, graph), print_plan(plan, graph));
  EXPECT_DOUBLE_EQ(read.seconds, plan.seconds);
}

TEST(PlanFile, RefusesPlansOfOtherGraphs) {
  const Graph graph = test::mlp(64, 16, 32);
  const std::string text = print_plan(solve(graph, parse_mesh("data=2"), {}, {}), graph);
  EXPECT_THAT(
      refusal(text, test::mlp(64, 16, 48)),
      HasSubstr("p.json: the plan is of another graph: node 3 is fc1 (linear to [64, 32]), that of the graph is "
                "fc1 (linear to [64, 48])"));
  Graph longer = graph;
  longer.nodes.push_back({.name = "more", .op = "neg", .inputs = {"loss"}});
  longer.settle();
  EXPECT_THAT(refusal(text, longer), HasSubstr("it lacks node more"));
  EXPECT_THAT(refusal(print_plan(solve(longer, parse_mesh("data=2"), {}, {}), longer), graph),
              HasSubstr("it has more (neg to []) after the last node"));
}

TEST(PlanFile, RefusesWhatIsNoPlan) {
  const Graph graph = test::mlp(64, 16, 32);
  const std::string text = print_plan(solve(graph, parse_mesh("data=2"), {}, {}), graph);
  EXPECT_THAT(refusal(print_graph(graph), graph),
              HasSubstr("`format` must be \"colossal-plan\": got \"colossal-graph\""));
  EXPECT_THAT(refusal(replaced(text, "\"version\": 1", "\"version\": 3"), graph), HasSubstr("must be 1: got 3"));
  EXPECT_THAT(refusal(replaced(text, "\"data\": 2", "\"dta\": 2"), graph), HasSubstr("did you mean `data`?"));
  EXPECT_THAT(refusal(replaced(text, "\"strategy\"", "\"stratgy\""), graph), HasSubstr("p.json: node 0: "));
  EXPECT_THAT(refusal("{", graph), HasSubstr("p.json"));
}

}  // namespace
}  // namespace colossal::plan::plan_file_test
