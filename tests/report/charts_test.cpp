// The charts of a page, which follow from the metrics of its runs, for runs of older versions too.
#include "colossal/report/charts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"

namespace colossal::report::charts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RecordedRun run_of(const RecordedSteps::Values& values, const MetricNames& names = {}) {
  RecordedRun run{.name = "x", .names = names};
  run.steps.add(1, values);
  return run;
}

/// Returns "title|unit|zero smooth log|name = legend; ..." for each chart.
std::vector<std::string> drawn(const std::vector<RecordedRun>& runs) {
  std::vector<std::string> all;
  for (const Chart& chart : charts_of(runs)) {
    std::string text = concat(chart.title, "|", chart.unit, "|", chart.from_zero, chart.smooth, chart.log, "|");
    for (const ChartLine& line : chart.lines) text += concat(line.name, " = ", line.legend, "; ");
    all.push_back(text);
  }
  return all;
}

// The titles, their order and the order of the curves equal the ones of versions whose steps had no rows.
TEST(Charts, EqualsOlderVersionsForARunWithoutNames) {
  EXPECT_THAT(
      drawn({run_of({{"loss", 1},
                     {"learning_rate", 1},
                     {"grad_norm", 1},
                     {"tokens", 1},
                     {"tokens_per_second", 1},
                     {"mfu", 1},
                     {"peak_bytes", 1},
                     {"seconds", 1},
                     {"tiers.host_bytes", 1},
                     {"tiers.disk_bytes", 1},
                     {"tiers.bytes_read", 1},
                     {"tiers.bytes_written", 1},
                     {"tiers.device_model_bytes", 1},
                     {"tiers.device_peak_bytes", 1},
                     {"tiers.device_bytes_in", 1},
                     {"tiers.device_bytes_out", 1},
                     {"stall_seconds", 1},
                     {"eval_loss", 1},
                     {"perplexity", 1},
                     {"accuracy", 1}})}),
      ElementsAre("Loss|number|011|loss = training loss; eval_loss = evaluation loss; ",
                  "Evaluation loss|number|001|eval_loss = evaluation loss; ",
                  "Held-out accuracy|share|100|accuracy = held-out accuracy; ",
                  "Learning rate|number|101|learning_rate = learning rate; ",
                  "Gradient norm|number|111|grad_norm = gradient norm; ",
                  "Tokens per second|number|111|tokens_per_second = tokens per second; ",
                  "Share of the peak|share|110|mfu = model FLOPs; ", "Step time|seconds|111|seconds = step time; ",
                  "Peak memory of a rank|bytes|101|peak_bytes = peak memory; ",
                  "Parameters, gradients and states|bytes|101|tiers.host_bytes = host memory; "
                  "tiers.disk_bytes = disk alone; ",
                  "Moved in a step|bytes|101|tiers.bytes_read = read from the disk; "
                  "tiers.bytes_written = written to the disk; ",
                  "Largest device of a rank|bytes|101|tiers.device_peak_bytes = all; "
                  "tiers.device_model_bytes = parameters and states; ",
                  "Copied in a step|bytes|101|tiers.device_bytes_in = to devices; "
                  "tiers.device_bytes_out = from devices; "));
}

TEST(Charts, DrawsOtherMetricsByTheirEntries) {
  const MetricNames names{{"rmse", {.unit = "m", .plot = "Error", .legend = "held-out"}},
                          {"worst", {.unit = "m", .plot = "Error"}},
                          {"cache", {.unit = "bytes", .plot = "Cache"}},
                          {"wait", {.unit = "s", .plot = "Wait"}},
                          {"hits", {.unit = "share", .plot = "Hits"}},
                          {"teacher_loss", {.unit = "nats", .plot = "Loss", .legend = "teacher"}},
                          {"silent", {.unit = "m"}}};
  EXPECT_THAT(drawn({run_of({{"rmse", 1},
                             {"cache", 1},
                             {"wait", 1},
                             {"hits", 1},
                             {"silent", 1},
                             {"worst", 1},
                             {"teacher_loss", 1},
                             {"loss", 1}},
                            names)}),
              ElementsAre("Loss|number|011|teacher_loss = teacher; loss = training loss; ",
                          "Error (m)|number|011|rmse = held-out; worst = worst; ", "Cache|bytes|111|cache = cache; ",
                          "Wait|seconds|111|wait = wait; ", "Hits|share|110|hits = hits; "));
}

TEST(Charts, DrawsANameWithoutAnEntryAsAPlainLine) {
  EXPECT_THAT(drawn({run_of({{"blocks.0.load", 1}})}), ElementsAre("blocks.0.load|number|011|blocks.0.load = "
                                                                   "blocks.0.load; "));
}

TEST(Charts, DrawsTheNamesOfAllRuns) {
  const RecordedRun first = run_of({{"a", 1}}, {{"a", {.plot = "A"}}});
  const RecordedRun second = run_of({{"b", 1}, {"a", 1}}, {{"a", {.plot = "other"}}, {"b", {.plot = "A"}}});
  EXPECT_THAT(drawn({first, second}), ElementsAre("A|number|011|a = a; b = b; "));
  EXPECT_THAT(drawn({RecordedRun{}}), IsEmpty());
}

}  // namespace
}  // namespace colossal::report::charts_test
