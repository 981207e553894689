#include "colossal/report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/steps.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::report::metrics_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr int64_t kPlenty = 1 << 20;

StepMetrics step(int64_t number) {
  return test::step_of(number, {{"loss", 1.0 / 3 + static_cast<double>(number)},
                                {"learning_rate", 3e-4},
                                {"grad_norm", 0.1},
                                {"tokens", int64_t{2048}},
                                {"tokens_per_second", 12345.678},
                                {"mfu", 0.4},
                                {"peak_bytes", int64_t{3} << 40},
                                {"seconds", 0.25}});
}

MetricsWriter writer_in(const test::TemporaryFolder& folder, std::optional<int64_t> resumed_after = std::nullopt) {
  return MetricsWriter(folder / "m", folder / "names", resumed_after);
}

std::vector<int64_t> steps_in(const test::TemporaryFolder& folder) { return read_metrics(folder / "m").numbers(); }

void write_steps(MetricsWriter& writer, int64_t first, int64_t last) {
  for (int64_t i = first; i <= last; ++i) writer.write(step(i));
}

// The members, their order and their digits equal the ones of versions whose steps had no rows.
TEST(Metrics, WritesTheMembersOfOlderVersions) {
  EXPECT_EQ(to_json_line(test::step_of(7, {{"loss", 2.5},
                                           {"learning_rate", 0.001},
                                           {"grad_norm", 1.0},
                                           {"tokens", int64_t{64}},
                                           {"tokens_per_second", 10.0},
                                           {"mfu", 0.5},
                                           {"peak_bytes", int64_t{100}},
                                           {"seconds", 2.0},
                                           {"tiers.host_bytes", int64_t{1}},
                                           {"tiers.disk_bytes", int64_t{2}},
                                           {"tiers.bytes_read", int64_t{3}},
                                           {"tiers.bytes_written", int64_t{4}},
                                           {"tiers.device_model_bytes", int64_t{5}},
                                           {"tiers.device_peak_bytes", int64_t{6}},
                                           {"tiers.device_bytes_in", int64_t{7}},
                                           {"tiers.device_bytes_out", int64_t{8}},
                                           {"stall_seconds", 12.0},
                                           {"eval_loss", 1.5},
                                           {"perplexity", 4.5},
                                           {"accuracy", 0.25}})),
            R"({"step":7,"loss":2.5,"learning_rate":0.001,"grad_norm":1.0,"tokens":64,"tokens_per_second":10.0,)"
            R"("mfu":0.5,"peak_bytes":100,"seconds":2.0,"tiers":{"host_bytes":1,"disk_bytes":2,"bytes_read":3,)"
            R"("bytes_written":4,"device_model_bytes":5,"device_peak_bytes":6,"device_bytes_in":7,)"
            R"("device_bytes_out":8},"stall_seconds":12.0,"eval_loss":1.5,"perplexity":4.5,"accuracy":0.25})");
}

TEST(Metrics, NestsDottedNames) {
  StepMetrics metrics(1);
  metrics.add({.name = "blocks.0.load", .value = 3});
  metrics.add({.name = "rmse", .value = 0.5});
  metrics.add({.name = "blocks.1.load", .value = 4});
  EXPECT_EQ(to_json_line(metrics), R"({"step":1,"blocks":{"0":{"load":3},"1":{"load":4}},"rmse":0.5})");
}

TEST(Metrics, ReadsBackExactValues) {
  const test::TemporaryFolder folder;
  const double infinite = std::numeric_limits<double>::infinity();
  {
    MetricsWriter writer = writer_in(folder);
    writer.write(step(1));
    StepMetrics strange = test::step_of(2, {{"loss", std::numeric_limits<double>::quiet_NaN()},
                                            {"grad_norm", infinite},
                                            {"tiers.host_bytes", int64_t{5} << 40},
                                            {"stall_seconds", 12.5},
                                            {"eval_loss", -infinite}});
    strange.add({.name = "blocks.0.load", .value = 3});
    writer.write(strange);
  }
  const RecordedSteps read = read_metrics(folder / "m");
  EXPECT_THAT(read.numbers(), ElementsAre(1, 2));
  EXPECT_EQ(read.value("loss", 0), 1.0 / 3 + 1);
  EXPECT_EQ(read.value("tokens_per_second", 0), 12345.678);
  EXPECT_EQ(read.value("peak_bytes", 0), static_cast<double>(int64_t{3} << 40));
  EXPECT_FALSE(read.value("eval_loss", 0));
  EXPECT_FALSE(read.value("tiers.host_bytes", 0));
  EXPECT_TRUE(std::isnan(read.value("loss", 1).value()));
  EXPECT_EQ(read.value("grad_norm", 1), infinite);
  EXPECT_EQ(read.value("eval_loss", 1), -infinite);
  EXPECT_EQ(read.value("stall_seconds", 1), 12.5);
  EXPECT_EQ(read.value("tiers.host_bytes", 1), static_cast<double>(int64_t{5} << 40));
  EXPECT_EQ(read.value("blocks.0.load", 1), 3);
}

TEST(Metrics, WritesNewNamesToMetricsJson) {
  const test::TemporaryFolder folder;
  MetricsWriter writer = writer_in(folder);
  writer.write(test::step_of(1, {{"loss", 1.0}}));
  EXPECT_EQ(read_file(folder / "names", kPlenty),
            "{\n  \"loss\": {\n    \"unit\": \"nats\",\n    \"plot\": \"Loss\",\n"
            "    \"legend\": \"training loss\"\n  }\n}\n");
  StepMetrics metrics = test::step_of(2, {{"loss", 1.0}});
  metrics.add({.name = "rmse", .value = 0.5, .unit = "m", .plot = "Error"});
  metrics.add({.name = "hidden", .value = 0.5});
  writer.write(metrics);
  const MetricNames names = read_metric_names(folder / "names");
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(names.at("rmse").unit, "m");
  EXPECT_EQ(names.at("rmse").plot, "Error");
  EXPECT_EQ(names.at("hidden").plot, "");
}

TEST(Metrics, KeepsNamesAndAddsOthersOnResume) {
  const test::TemporaryFolder folder;
  StepMetrics metrics(1);
  metrics.add({.name = "rmse", .value = 0.5, .unit = "m", .plot = "Error"});
  writer_in(folder).write(metrics);
  writer_in(folder, 1).write(step(2));
  EXPECT_EQ(read_metric_names(folder / "names").at("rmse").plot, "Error");
  EXPECT_EQ(read_metric_names(folder / "names").count("loss"), 1u);
  write_file(folder / "names", "[]");  // damaged: the names of the next step replace it
  writer_in(folder, 2).write(step(3));
  EXPECT_EQ(read_metric_names(folder / "names").count("loss"), 1u);
  writer_in(folder).write(step(1));  // a new run drops the names of the old one
  EXPECT_EQ(read_metric_names(folder / "names").count("rmse"), 0u);
}

TEST(Metrics, RetriesNamesThatCannotBeWritten) {
  const test::TemporaryFolder folder;
  MetricsWriter writer(folder / "m", folder / "later/names", std::nullopt);
  EXPECT_THROW(writer.write(step(1)), Error);
  std::filesystem::create_directories(folder / "later");
  writer.write(step(2));
  EXPECT_EQ(read_metric_names(folder / "later/names").count("loss"), 1u);
  EXPECT_THAT(steps_in(folder), ElementsAre(1, 2)) << "the lines do not wait for the names";
}

TEST(Metrics, WritesEachLineAtOnce) {
  const test::TemporaryFolder folder;
  MetricsWriter writer = writer_in(folder);
  writer.write(step(1));
  EXPECT_THAT(steps_in(folder), ElementsAre(1));
}

TEST(Metrics, DropsStepsAfterTheCheckpointOnResume) {
  const test::TemporaryFolder folder;
  {
    MetricsWriter writer = writer_in(folder);
    write_steps(writer, 1, 5);
  }
  {
    MetricsWriter writer = writer_in(folder, 3);
    write_steps(writer, 4, 6);
  }
  EXPECT_THAT(steps_in(folder), ElementsAre(1, 2, 3, 4, 5, 6));
  {
    MetricsWriter writer = writer_in(folder, 0);
  }
  EXPECT_THAT(steps_in(folder), ElementsAre());
}

TEST(Metrics, KeepsLinesUnchangedOnResume) {
  const test::TemporaryFolder folder;
  {
    MetricsWriter writer = writer_in(folder);
    write_steps(writer, 1, 3);
  }
  const std::string before = read_file(folder / "m", kPlenty);
  {
    MetricsWriter writer = writer_in(folder, 3);
  }
  EXPECT_EQ(read_file(folder / "m", kPlenty), before);
}

TEST(Metrics, KeepsMembersOfOtherVersionsOnResume) {
  const test::TemporaryFolder folder;
  const std::string line = "{\"step\": 1, \"loss\": 2.50, \"new\": {\"member\": 7}}\n";
  folder.write("m", line + "{\"step\": 2, \"loss\": 2.25}\n");
  writer_in(folder, 1);
  EXPECT_EQ(read_file(folder / "m", kPlenty), line);
}

TEST(Metrics, EmptiesTheFileForANewRun) {
  const test::TemporaryFolder folder;
  {
    MetricsWriter writer = writer_in(folder);
    write_steps(writer, 1, 5);
  }
  {
    MetricsWriter writer = writer_in(folder);
    write_steps(writer, 1, 1);
  }
  EXPECT_THAT(steps_in(folder), ElementsAre(1));
}

TEST(Metrics, IgnoresALineCutShortByAKill) {
  const test::TemporaryFolder folder;
  write_file(folder / "m", to_json_line(step(1)) + "\n" + to_json_line(step(2)).substr(0, 20));
  EXPECT_THAT(steps_in(folder), ElementsAre(1));
  {
    MetricsWriter writer = writer_in(folder, 1);
    writer.write(step(2));
  }
  EXPECT_THAT(steps_in(folder), ElementsAre(1, 2));
}

TEST(Metrics, CreatesAMissingFileOnResume) {
  const test::TemporaryFolder folder;
  {
    writer_in(folder, 10).write(step(11));
  }
  EXPECT_THAT(steps_in(folder), ElementsAre(11));
}

TEST(MetricsErrors, NamesTheLine) {
  const test::TemporaryFolder folder;
  for (const char* bad :
       {"nonsense", "{}", "[1]", "3", R"({"step":"x"})", "{\"step\":1,\"loss\":\"abc\"}", "\xff", R"({"step":1e999})",
        R"({"step":1.5})", R"({"step":1,"loss":null})", R"({"step":1,"loss":[2]})"}) {
    write_file(folder / "m", to_json_line(step(1)) + "\n" + bad + "\n");
    try {
      read_metrics(folder / "m");
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("[metrics] " + (folder / "m") + ":2: not a line of metrics")) << bad;
    }
    EXPECT_THROW(writer_in(folder, 1), Error) << "would lose what it cannot read";
  }
}

TEST(MetricsErrors, NamesTheEntryOfMetricsJson) {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("names", R"({"loss":{"unit":"nats"},"rmse":{"unit":3}})");
  EXPECT_EQ(test::thrown_message([&] { read_metric_names(path); }),
            "[metrics] " + path + ": `rmse` must be an object of texts (unit, plot, legend); remove the file");
  folder.write("names", R"({"rmse":3})");
  EXPECT_THAT(test::thrown_message([&] { read_metric_names(path); }), HasSubstr("`rmse` must be an object of texts"));
}

TEST(MetricsErrors, ReportsUnwritableAndFullPlaces) {
  EXPECT_THROW(MetricsWriter("/nonexistent/m", "/nonexistent/names", std::nullopt), Error);
  if (std::filesystem::exists("/dev/full")) {
    const test::TemporaryFolder folder;
    MetricsWriter writer("/dev/full", folder / "names", std::nullopt);
    EXPECT_THROW(writer.write(step(1)), Error);
  }
}

}  // namespace
}  // namespace colossal::report::metrics_test
