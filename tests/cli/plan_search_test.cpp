// What a search prints, as text and as JSON.
#include "colossal/cli/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/cli/auto_layout.h"
#include "support/temporary_folder.h"

namespace colossal::cli::plan_search_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

predict::SearchResult two_layouts() {
  predict::SearchResult found;
  for (const double seconds : {0.25, 0.5}) {
    predict::FoundLayout layout;
    layout.prediction.parameters = 1000, layout.prediction.vocabulary = 257;
    layout.prediction.ranks = 2;
    layout.prediction.step_seconds = seconds;
    layout.prediction.peak_bytes = 3 << 20;
    layout.table = seconds < 0.3 ? "[parallel]\ndata = 2\n" : "[parallel]\ndata = 1\ntensor.size = 2\n";
    layout.why = "2.0 times as fast as data = 2";
    found.best.push_back(layout);
  }
  found.tried = 40;
  found.recorded = 7;
  return found;
}

TEST(PlanSearch, ListsLayoutsAsJson) {
  const auto json = nlohmann::json::parse(to_json(two_layouts()));
  EXPECT_EQ(json["step_seconds"], 0.25);  // the prediction of the fastest
  ASSERT_EQ(json["best"].size(), 2u);
  EXPECT_EQ(json["best"][1]["step_seconds"], 0.5);
  EXPECT_EQ(json["best"][0]["peak_bytes"], 3 << 20);
  EXPECT_EQ(json["best"][0]["table"], "[parallel]\ndata = 2\n");
  EXPECT_EQ(json["best"][0]["why"], "2.0 times as fast as data = 2");
}

TEST(PlanSearch, ListsLayoutsAsText) {
  const std::string text = to_text(two_layouts());
  EXPECT_THAT(text, StartsWith("1000 parameters, vocabulary 257\nlayouts that fit"));
  EXPECT_THAT(text, HasSubstr("40 are legal, 7 were simulated"));
  EXPECT_THAT(text, HasSubstr("     0.25     3.0 MiB  [parallel]  data = 2\n"));
  EXPECT_THAT(text, HasSubstr("\n\n[parallel]\ndata = 2\n"));
}

TEST(PlanSearch, PrintsTheSameComparisonOnce) {
  predict::SearchResult found = two_layouts();
  const std::string first = "MiB  [parallel]  data = 2\n" + std::string(23, ' ') + "2.0 times as fast as data = 2\n";
  const std::string second = "      0.5     3.0 MiB  [parallel]  data = 1  tensor.size = 2\n";
  EXPECT_THAT(to_text(found), HasSubstr(first + second + "\n[parallel]"));
  found.best.back().why = "as fast as data = 2";
  EXPECT_THAT(to_text(found), HasSubstr(first + second + std::string(23, ' ') + "as fast as data = 2\n\n[parallel]"));
}

TEST(AutoLayout, PassesThroughAFile) {
  ChosenLayout layout{.table = "[parallel]\ndata = 2\nzero = 1\n", .why = "a \"reason\"", .prediction = std::nullopt};
  layout.prediction.emplace().step_seconds = 0.5;
  std::string path;
  {
    const LayoutFile file(encode(layout));
    path = file.path();
    using std::filesystem::perms;
    EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_read | perms::owner_write);
    const ChosenLayout read = read_layout(path);
    EXPECT_EQ(read.table, layout.table);
    EXPECT_EQ(read.why, layout.why);
    ASSERT_TRUE(read.prediction);
    EXPECT_EQ(read.prediction->step_seconds, 0.5);
  }
  EXPECT_THROW(read_layout(path), Error);  // it is gone
  EXPECT_THROW(decode("[]"), Error);
  EXPECT_THROW(decode("{"), Error);
}

TEST(AutoLayout, ReplacesAuto) {
  run::Config config;
  config.parallel.automatic = true;
  config.parallel.ranks_wanted = 4;
  const run::Config chosen =
      with_layout(config, {.table = "[parallel]\ndata = 2\ntensor.size = 2\n[training]\naccumulate = 2\n"});
  EXPECT_FALSE(chosen.parallel.automatic);
  EXPECT_EQ(chosen.parallel.ranks_wanted, 0);
  EXPECT_EQ(chosen.parallel.ranks(), 4);
  EXPECT_EQ(chosen.training.accumulate, 2);
  chosen.validate();
}

TEST(AutoLayout, KeepsTheLayoutOfAResumedRun) {
  const test::TemporaryFolder folder;
  run::Config config;
  config.run.folder = folder.path();
  config.run.device = "cpu";
  config.model.name = "gpt2-tiny";
  config.parallel.automatic = true;
  config.parallel.ranks_wanted = 2;
  run::Config saved = config;
  saved.parallel.automatic = false;
  saved.parallel.tensor.size = 2;
  saved.training.accumulate = 4;
  write_file(folder / "config.toml", to_toml(saved));
  const ChosenLayout kept = choose_layout(config, run::built_in(), 2, true);
  EXPECT_THAT(kept.why, HasSubstr("kept from "));
  EXPECT_FALSE(kept.prediction);
  const run::Config resumed = with_layout(config, kept);
  EXPECT_EQ(resumed.parallel.tensor.size, 2);
  EXPECT_EQ(resumed.training.accumulate, 4);
}

TEST(AutoLayout, NeedsANumberOfRanks) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.automatic = true;
  EXPECT_THROW(ranks_of_auto(config.parallel, config.run, comm::cuda_devices()), Error);
  config.parallel.ranks_wanted = 3;
  EXPECT_EQ(ranks_of_auto(config.parallel, config.run, comm::cuda_devices()), 3);
}

}  // namespace
}  // namespace colossal::cli::plan_search_test
