#include "colossal/report/recorded_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "colossal/base/error.h"
#include "support/steps.h"
#include "support/thrown_message.h"

namespace colossal::report::recorded_run_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RecordedRunTest : public testing::Test {
 protected:
  void SetUp() override {
    folder = testing::TempDir() + "/recorded-" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
  }
  std::string path(const char* name) const { return folder + "/" + name; }
  void write(const char* name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary | std::ios::app) << text;
  }
  std::string line(int64_t step, double loss) const {
    return to_json_line(test::step_of(step, {{"loss", loss}})) + "\n";
  }
  std::string message() const {
    return test::thrown_message([&] { read_run(folder); });
  }
  std::string folder;
};

TEST_F(RecordedRunTest, ReadsRecordsOfARecorder) {
  write("config.toml", "[training]\nsteps = 2\n");
  write("metrics.jsonl", line(1, 3) + line(2, 2));
  {
    RunRecorder recorder(path("history.jsonl"), path("ranks.jsonl"), true);
    recorder.write(StartRecord{.time = 5,
                               .command = {"colossal", "train", "\xff"},
                               .version = "1",
                               .revision = "abc",
                               .mesh = {{"data", 2}},
                               .facts = {{"model", "m"}}});
    recorder.write(RankMetrics{1, {0.5, 0.25}, {10, 20}});
    recorder.write(RankMetrics{2, {0.5, 0.1234567}, {10, 30}});
    recorder.write(SampleRecord{2, "a", "b\n"});
  }
  const RecordedRun run = read_run(folder);
  EXPECT_THAT(run.missing, IsEmpty());
  EXPECT_THAT(run.steps.numbers(), ElementsAre(1, 2));
  ASSERT_EQ(run.starts.size(), 1u);
  EXPECT_THAT(run.starts[0].command, ElementsAre("colossal", "train", "\xEF\xBF\xBD"));
  EXPECT_EQ(run.starts[0].revision, "abc");
  EXPECT_EQ(run.starts[0].mesh.at(0).size, 2);
  ASSERT_EQ(run.ranks.size(), 2u);
  EXPECT_THAT(run.ranks[1].seconds, ElementsAre(0.5, 0.123457));
  EXPECT_THAT(run.ranks[1].peak_bytes, ElementsAre(10, 30));
  ASSERT_EQ(run.samples.size(), 1u);
  EXPECT_EQ(run.samples[0].text, "b\n");
}

TEST_F(RecordedRunTest, ReplacesOlderStepsAfterAResume) {
  write("config.toml", "");
  write("metrics.jsonl", line(1, 1) + line(2, 1) + line(3, 1) + line(4, 1) + line(3, 9));
  const auto record = [&](bool anew, const char* kind, int64_t after, int64_t first, int64_t last) {
    RunRecorder recorder(path("history.jsonl"), path("ranks.jsonl"), anew);
    recorder.write(StartRecord{.kind = kind, .after = after});
    for (int64_t step = first; step <= last; ++step) {
      recorder.write(RankMetrics{step, {static_cast<double>(after)}, {1}});
      recorder.write(SampleRecord{step, "", std::to_string(after)});
    }
  };
  record(true, "new", 0, 1, 4);
  record(false, "resume", 2, 3, 3);
  const RecordedRun run = read_run(folder);
  EXPECT_THAT(run.steps.numbers(), ElementsAre(1, 2, 3));
  EXPECT_EQ(test::last(run.steps, "loss"), 9);
  EXPECT_EQ(run.steps.find("loss")->values.size(), 3u);
  EXPECT_EQ(run.starts.size(), 2u);
  ASSERT_EQ(run.ranks.size(), 3u);
  EXPECT_EQ(run.ranks[2].seconds[0], 2);
  ASSERT_EQ(run.samples.size(), 3u);
  EXPECT_EQ(run.samples[2].text, "2");
  record(false, "resume", 1, 5, 4);  // no step so far
  EXPECT_EQ(read_run(folder).samples.size(), 1u);
}

TEST_F(RecordedRunTest, SkipsUnreadableLines) {
  write("config.toml", "[training");
  write("metrics.jsonl", line(1, 3) + "{\"step\": 2, \"lo\n" + line(3, 2) + line(4, 1).substr(0, 15));
  write("history.jsonl", "[1]\n{\"start\": {\"kind\": 3}}\n{\"sample\"");
  write("ranks.jsonl", "{\"step\":1,\"seconds\":[1,2],\"peak_bytes\":[1]}\n" + std::string(300'000, '['));
  const RecordedRun run = read_run(folder);
  EXPECT_THAT(run.steps.numbers(), ElementsAre(1, 3));
  EXPECT_THAT(run.missing,
              ElementsAre(HasSubstr("config.toml cannot be read"),
                          "metrics.jsonl: 2 lines cannot be read (the first: line 2); the other lines are shown",
                          "history.jsonl: 3 lines cannot be read (the first: line 1); the other lines are shown",
                          HasSubstr("history.jsonl has no start"),
                          "ranks.jsonl: 2 lines cannot be read (the first: line 1); the other lines are shown"));
}

TEST_F(RecordedRunTest, ReadsRunsWithoutRecords) {
  write("metrics.jsonl", line(1, 3));
  EXPECT_THAT(read_run(folder).missing, ElementsAre("config.toml is missing", HasSubstr("history.jsonl has no start"),
                                                    HasSubstr("ranks.jsonl is missing")));
}

TEST_F(RecordedRunTest, ReadsEntriesOfMetrics) {
  write("config.toml", "");
  write("metrics.jsonl", line(1, 3));
  EXPECT_TRUE(read_run(folder).names.empty()) << "of an older version";
  write("metrics.json", R"({"rmse": {"unit": "m", "plot": "Error", "new": 1}})");
  EXPECT_EQ(read_run(folder).names.at("rmse").plot, "Error");
  write("metrics.json", "}");
  const RecordedRun run = read_run(folder);
  EXPECT_TRUE(run.names.empty());
  EXPECT_THAT(run.missing, Contains(HasSubstr("metrics.json cannot be read: ")));
}

TEST_F(RecordedRunTest, RefusesFoldersWithoutARun) {
  EXPECT_THAT(message(),
              HasSubstr(folder + " must be the folder of a run: it holds neither config.toml nor metrics.jsonl"));
  std::filesystem::create_directories(path("metrics.jsonl"));
  EXPECT_THAT(message(), HasSubstr("metrics.jsonl must be a regular file"));
  folder += "/nothing";
  EXPECT_THAT(message(), HasSubstr("there is no folder " + folder));
  std::ofstream(folder) << "x";
  EXPECT_THAT(message(), HasSubstr("must be the folder of a run: got a file"));
}

TEST_F(RecordedRunTest, StartsANewLineAfterACutLine) {
  write("config.toml", "");
  write("history.jsonl", "{\"start\":{\"ki");
  RunRecorder(path("history.jsonl"), path("ranks.jsonl"), false).write(StartRecord{.kind = "resume"});
  EXPECT_EQ(read_run(folder).starts.size(), 1u);
}

TEST_F(RecordedRunTest, RecordsManyRanksLessOften) {
  RunRecorder recorder(path("history.jsonl"), path("ranks.jsonl"), true);
  for (int64_t step = 1; step <= 8; ++step)
    recorder.write(RankMetrics{step, std::vector<double>(256, 1), std::vector<int64_t>(256, 1)});
  DamagedLines damaged;
  const auto steps = read_rank_metrics(path("ranks.jsonl"), damaged);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].step, 4);
}

}  // namespace
}  // namespace colossal::report::recorded_run_test
