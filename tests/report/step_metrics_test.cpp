#include "colossal/report/step_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "colossal/base/error.h"
#include "support/steps.h"
#include "support/thrown_message.h"

namespace colossal::report::step_metrics_test {
namespace {

using ::testing::HasSubstr;

std::string refusal(StepMetrics metrics, const Metric& row) {
  return test::thrown_message([&] { metrics.add(row); });
}

std::string refusal(const Metric& row) { return refusal(StepMetrics(1), row); }

std::string line_of(const Metric& row) {
  StepMetrics metrics(1);
  metrics.add(row);
  return progress_line(metrics);
}

TEST(StepMetricsErrors, NamesTakenNames) {
  StepMetrics metrics = test::step_of(1, {{"loss", 1.0}, {"tiers.host_bytes", int64_t{1}}});
  metrics.add({.name = "blocks.0.load", .value = 1});
  for (const char* name : {"loss", "step", "tiers", "tiers.host_bytes", "blocks", "blocks.0", "blocks.0.load"}) {
    EXPECT_THAT(refusal(metrics, {.name = name, .value = 1}),
                HasSubstr(concat("[metrics] the name of a metric must be new: `", name, "` is taken by another row")));
  }
  EXPECT_THAT(refusal(metrics, {.name = "loss.teacher", .value = 1}),
              HasSubstr("`loss` in `loss.teacher` is taken by a metric that is a number; choose another name"));
  EXPECT_THAT(refusal(metrics, {.name = "step.half", .value = 1}), HasSubstr("`step` in `step.half` is taken"));
  EXPECT_EQ(refusal(metrics, {.name = "blocks.1", .value = 1}), "");
}

TEST(StepMetricsErrors, ReservesNamesOfOccasionalMetrics) {
  EXPECT_THAT(refusal({.name = "stall_seconds", .value = 1.0, .unit = "m"}), HasSubstr("`stall_seconds` is taken by"));
  EXPECT_THAT(refusal({.name = "eval_loss", .value = 1.0}), HasSubstr("`eval_loss` is taken by"));
  EXPECT_EQ(refusal(known_metric("eval_loss", 1.0)), "") << "the row of the library itself";
}

TEST(StepMetricsErrors, NamesInvalidNames) {
  for (const char* name : {"", ".", "a.", ".a", "a..b", "a b", "a\"b", "\xff"})
    EXPECT_THAT(refusal({.name = name, .value = 1}),
                HasSubstr(concat("must be letters, digits, _ and - with dots between, 200 at most: got `", name, "`")));
  EXPECT_THAT(refusal({.name = std::string(201, 'a'), .value = 1}), HasSubstr("200 at most"));
}

TEST(StepMetricsErrors, NamesTheFormat) {
  for (const char* line :
       {"loss", "%", "%.3", "%f and %f", "%n", "%.3ff%p", "%*f", "%100f", "%.100f", "%ls", "%c", "%5s", "%lf", "100 %"})
    EXPECT_THAT(refusal({.name = "rmse", .value = 1.0, .unit = "bytes", .line = line}),
                HasSubstr(concat("format of metric `rmse` must have one conversion such as %.3f, %d or %s: got `", line,
                                 "`; change its `line`")));
  EXPECT_THAT(refusal({.name = "rmse", .value = 1.0, .unit = "m", .line = "%s"}),
              HasSubstr("%s in the format of `rmse` needs the unit bytes or s: got `m`"));
  EXPECT_THAT(refusal({.name = "rmse", .value = 1.0, .line = "%d"}), HasSubstr("%d in the format of `rmse` needs an"));
}

TEST(KnownMetricErrors, NamesUnknownMetrics) {
  EXPECT_FALSE(find_known_metric("rmse"));
  try {
    known_metric("rmse", 1.0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[metrics] `rmse` must be a metric of base/known_metrics.cpp"));
  }
}

// The words and their order equal the ones of versions whose steps had no rows.
TEST(ProgressLine, KeepsTheWordsOfOlderVersions) {
  EXPECT_EQ(progress_line(test::step_of(1, {{"loss", 5.48551},
                                            {"learning_rate", 3e-5},
                                            {"grad_norm", 4.6164},
                                            {"tokens", int64_t{2048}},
                                            {"tokens_per_second", 11886.4},
                                            {"mfu", 0.5},
                                            {"peak_bytes", int64_t{100}},
                                            {"seconds", 2.0},
                                            {"tiers.host_bytes", int64_t{1} << 30},
                                            {"tiers.disk_bytes", int64_t{2} << 30},
                                            {"tiers.bytes_read", int64_t{1} << 30},
                                            {"tiers.bytes_written", int64_t{3} << 30},
                                            {"tiers.device_model_bytes", int64_t{5}},
                                            {"tiers.device_peak_bytes", int64_t{6} << 20},
                                            {"tiers.device_bytes_in", int64_t{7} << 20},
                                            {"tiers.device_bytes_out", int64_t{8} << 20},
                                            {"stall_seconds", 12.0},
                                            {"eval_loss", 1.25},
                                            {"perplexity", 4.5},
                                            {"accuracy", 0.5125}})),
            "loss 5.4855  11886 tokens/s  lr 3.00e-05  norm 4.616  host 1.0 GiB  disk 2.0 GiB  moved 4.0 GiB  "
            "device 6.0 MiB  copied 15.0 MiB  held-out 1.2500  accuracy 51.2 %");
}

TEST(ProgressLine, FormatsRows) {
  EXPECT_EQ(line_of({.name = "rmse", .value = 0.25, .line = "rmse %.3f"}), "rmse 0.250");
  EXPECT_EQ(line_of({.name = "rmse", .value = 3, .line = "rmse %-+5.1f|"}), "rmse +3.0 |");
  EXPECT_EQ(line_of({.name = "swaps", .value = int64_t{1} << 40, .line = "swaps %d"}), "swaps 1099511627776");
  EXPECT_EQ(line_of({.name = "hits", .value = 0.25, .unit = "share", .line = "hits %.2f"}), "hits 0.25");
  EXPECT_EQ(line_of({.name = "hits", .value = 0.25, .unit = "share", .line = "hits %.0f%%"}), "hits 25%");
  EXPECT_EQ(line_of({.name = "growth", .value = 3, .unit = "", .line = "%g %%"}), "3 %");
  EXPECT_EQ(line_of({.name = "cache", .value = 1 << 20, .unit = "bytes", .line = "cache %s"}), "cache 1.0 MiB");
  EXPECT_EQ(line_of({.name = "wait", .value = 12.0, .unit = "s", .line = "wait %s"}), "wait 12s");
  EXPECT_EQ(line_of({.name = "wait", .value = std::numeric_limits<double>::infinity(), .unit = "s", .line = "wait %s"}),
            "wait inf");
  EXPECT_EQ(line_of({.name = "rmse", .value = 1.0}), "") << "no format, no text";
}

TEST(ProgressLine, SumsRowsOfOneFormat) {
  StepMetrics metrics(1);
  metrics.add({.name = "a", .value = 1, .line = "sum %.1f"});
  metrics.add({.name = "b", .value = 5, .line = "b %d"});
  metrics.add({.name = "c", .value = 1.5, .line = "sum %.1f"});
  EXPECT_EQ(progress_line(metrics), "sum 2.5  b 5");
}

}  // namespace
}  // namespace colossal::report::step_metrics_test
