// `colossal plan --graph` as a user runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "plan/small_graphs.h"
#include "support/temporary_folder.h"

namespace colossal::cli::plan_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

struct PlanCommand {
  test::TemporaryFolder folder;
  std::string graph = folder / "graph.json";
  PlanCommand() { plan::write_graph(plan::test::mlp(4096, 4096, 16384, "bfloat16"), graph); }
  Outcome run(std::vector<std::string> words) const {
    words.insert(words.begin(), {"--graph", graph});
    return run_command("plan", std::move(words));
  }
};

TEST(PlanCommand, ListsNodesWithTheirCosts) {
  const PlanCommand command;
  const Outcome outcome = command.run({});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("fc1 +linear +\\[4096, 16384\\] +bfloat16 .*fc1.weight fc1.bias"));
  EXPECT_THAT(outcome.out, HasSubstr("7 nodes, 5 parameters"));
  const auto json = nlohmann::json::parse(command.run({"--json"}).out);
  EXPECT_EQ(json["nodes"].size(), 7);
  EXPECT_EQ(json["operations"], 2 * 3 * 2.0 * 4096 * 4096 * 16384);
}

TEST(PlanCommand, ListsStrategiesOfANode) {
  const PlanCommand command;
  const Outcome outcome = command.run({"--node", "fc2", "--mesh", "data=2,tensor=4"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              ContainsRegex("data=dim0,tensor=in +\\[data, tensor\\] \\[R, tensor\\] \\[R\\] +\\[data, R\\].*"
                            "forward all_reduce over tensor of fc2"));
  EXPECT_THAT(command.run({"--node", "fc9"}).err, HasSubstr("did you mean `fc1`?"));
}

TEST(PlanCommand, WritesAPlanAndPricesIt) {
  const PlanCommand command;
  const std::string file = command.folder / "plan.json";
  const Outcome solved = command.run({"--mesh", "data=2,tensor=4", "--memory", "40GiB", "--to", file});
  EXPECT_EQ(solved.status, 0) << solved.err;
  EXPECT_THAT(solved.out, HasSubstr("proven optimal\nthe plan fits 40GiB\n"));
  const auto json = nlohmann::json::parse(command.run({"--mesh", "data=2,tensor=4", "--json"}).out);
  const auto priced = nlohmann::json::parse(command.run({"--plan", file, "--json"}).out);
  EXPECT_EQ(priced["seconds"], json["seconds"]);
  EXPECT_EQ(priced["nodes"], json["nodes"]);
  EXPECT_TRUE(json["proven_optimal"]);
  EXPECT_FALSE(priced.contains("proven_optimal"));
}

TEST(PlanCommand, PricesAnEditedPlanWithItsConversions) {
  const PlanCommand command;
  const std::string file = command.folder / "plan.json";
  ASSERT_EQ(command.run({"--mesh", "tensor=4", "--to", file}).status, 0);
  std::string text = read_file(file, 1 << 20);
  const std::string gelu = "\"gelu\",\"op\":\"gelu\",\"shape\":[4096,16384],\"strategy\":\"tensor=dim1\"";
  const size_t at = text.find(gelu);
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at + gelu.size() - 13, 13, "\"whole\"");
  ASSERT_NE(text.find("\"whole\""), std::string::npos);
  write_file(file, text);
  const Outcome outcome = command.run({"--plan", file});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("fc1: [R, tensor] to [R, R] by all_gather over tensor for gelu"));
}

TEST(PlanCommand, RefusesBadInput) {
  const PlanCommand command;
  const Outcome none = run_command("plan", {});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.err, HasSubstr("--graph FILE is needed"));
  EXPECT_THAT(command.run({"--mesh", "pipeline=2"}).err, HasSubstr("must be data or tensor: got `pipeline=2`"));
  EXPECT_EQ(command.run({"--mesh", "tensor=2", "--memory", "much"}).status, 2);
  EXPECT_THAT(command.run({"--memory", "1GiB"}).err, HasSubstr("no effect without --mesh or --plan"));
  const Outcome small = command.run({"--mesh", "tensor=2", "--memory", "1MiB"});
  EXPECT_EQ(small.status, 1);
  EXPECT_THAT(small.err, HasSubstr("no plan fits the memory of a rank: got 1MiB, the smallest peak found is"));
  const std::string file = command.folder / "plan.json";
  ASSERT_EQ(command.run({"--mesh", "tensor=4", "--to", file}).status, 0);
  EXPECT_THAT(command.run({"--plan", file, "--mesh", "tensor=2"}).err, HasSubstr("must be the mesh of the plan"));
}

TEST(PlanCommand, WarnsOfUnknownOperators) {
  const PlanCommand command;
  plan::test::GraphBuilder b;
  b.node("x", "input", {}, {4, 4});
  b.node("y", "cumsum", {"x"}, {4, 4});
  plan::write_graph(b.settled(), command.graph);
  EXPECT_THAT(command.run({"--mesh", "data=2"}).err, HasSubstr("cumsum has no strategies: every rank runs it whole"));
}

}  // namespace
}  // namespace colossal::cli::plan_test
