#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "colossal/base/json.h"
#include "colossal/report/charts.h"

namespace colossal::report::chart_data_test {
namespace {

using ::testing::ElementsAre;

nlohmann::json data_of(const RecordedRun& run) {
  const std::string element = chart_data({run});
  const size_t begin = element.find('>') + 1;
  return nlohmann::json::parse(element.substr(begin, element.rfind('<') - begin)).at("runs").at(0);
}

RecordedRun run_of(int64_t steps, size_t ranks, const std::map<int64_t, double>& losses = {}) {
  RecordedRun run{.name = "x"};
  for (int64_t step = 1; step <= steps; ++step) {
    const auto loss = losses.find(step);
    run.steps.add(step, {{"loss", loss == losses.end() ? 2 : loss->second}, {"tokens", 10}, {"seconds", 0.5}});
    RankMetrics record{.step = step};
    for (size_t rank = 0; rank < ranks; ++rank) {
      record.seconds.push_back(static_cast<double>(rank));
      record.peak_bytes.push_back(static_cast<int64_t>(rank));
    }
    run.ranks.push_back(record);
  }
  return run;
}

TEST(ChartData, SumsTimeAndTokens) {
  RecordedRun run = run_of(1, 1);
  run.steps.add(2, {{"tokens", 10}, {"seconds", std::numeric_limits<double>::quiet_NaN()}});
  run.steps.add(3, {{"tokens", 10}, {"seconds", 0.5}, {"eval_loss", 7}});
  const auto data = data_of(run);
  EXPECT_THAT(data["rows"]["step"].get<std::vector<int>>(), ElementsAre(1, 2, 3));
  EXPECT_THAT(data["rows"]["time"].get<std::vector<double>>(), ElementsAre(0.5, 0.5, 1));
  EXPECT_THAT(data["rows"]["tokens"].get<std::vector<int>>(), ElementsAre(10, 20, 30));
  EXPECT_THAT(data["series"]["eval_loss"]["i"].get<std::vector<int>>(), ElementsAre(2));
  EXPECT_EQ(data["series"]["seconds"]["bad"], 1);
  EXPECT_EQ(data["series"]["seconds"]["y"][1], "NaN");
}

TEST(ChartData, KeepsExtremesOfLongRuns) {
  const RecordedRun run =
      run_of(200'000, 2, {{123'457, 99}, {77'778, -99}, {6, std::numeric_limits<double>::infinity()}});
  const auto data = data_of(run);
  const auto& loss = data["series"]["loss"];
  const auto at = [&](const nlohmann::json& value) {
    for (size_t i = 0; i < loss["y"].size(); ++i)
      if (loss["y"][i] == value) return data["rows"]["step"][loss["i"][i].get<size_t>()].get<int64_t>();
    return int64_t{-1};
  };
  EXPECT_EQ(at(99), 123'457);
  EXPECT_EQ(at(-99), 77'778);
  EXPECT_EQ(at("infinite"), 6);
  EXPECT_EQ(loss["bad"], 1);
  EXPECT_LE(loss["y"].size(), 1000u);
  int64_t counted = 0;
  for (const auto& n : loss["s"]["n"]) counted += n.get<int64_t>();
  EXPECT_EQ(counted, 199'999) << "each finite value is in one mean";
}

TEST(ChartData, DrawsUpTo64RanksIndividually) {
  const auto few = data_of(run_of(2, 64))["ranks"];
  EXPECT_EQ(few["seconds"].size(), 64u);
  EXPECT_EQ(few["names"][63], "rank 63");
  EXPECT_THAT(few["seconds"][5]["y"].get<std::vector<double>>(), ElementsAre(5, 5));
  const auto many = data_of(run_of(2, 101))["ranks"];
  EXPECT_THAT(many["names"].get<std::vector<std::string>>(), ElementsAre("lowest rank", "median rank", "highest rank"));
  EXPECT_EQ(many["peak_bytes"][0]["y"][0], 0);
  EXPECT_EQ(many["peak_bytes"][1]["y"][0], 50);
  EXPECT_EQ(many["peak_bytes"][2]["y"][0], 100);
}

TEST(ChartData, AcceptsChangingNumbersOfRanks) {
  RecordedRun run = run_of(3, 2);  // the run was resumed with a different number of ranks
  run.ranks[1] = {2, {7}, {7}};
  run.ranks[2].step = 9;  // a step without metrics
  const auto ranks = data_of(run)["ranks"];
  EXPECT_THAT(ranks["seconds"][0]["y"].get<std::vector<double>>(), ElementsAre(0, 7));
  EXPECT_THAT(ranks["seconds"][1]["y"].get<std::vector<double>>(), ElementsAre(1));
}

}  // namespace
}  // namespace colossal::report::chart_data_test
