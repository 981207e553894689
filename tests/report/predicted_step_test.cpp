// Predicted beside measured numbers of a run.
#include "colossal/report/predicted_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/report/recorded_run.h"

namespace colossal::report::predicted_step_test {
namespace {

using ::testing::HasSubstr;

RecordedRun run_with(const std::string& prediction) {
  RecordedRun run;
  run.prediction = parse_predicted_step(prediction);
  const double bytes = 3 << 20;
  for (int64_t step = 1; step <= 4; ++step)
    run.steps.add(step, {{"seconds", step == 1 ? 9.0 : 0.5}, {kDevicePeak, bytes}, {kResidentPeak, 2 * bytes}});
  return run;
}

constexpr char kPrediction[] =
    R"({"step_seconds": 0.25, "peak_bytes": 2097152, "roles": [{"resident_bytes": 1}, {"resident_bytes": 4194304}]})";

TEST(PredictedStep, StandsBesideMeasurements) {
  const RecordedRun run = run_with(kPrediction);
  const std::string text = predicted_text(run);
  EXPECT_THAT(text, HasSubstr("predicted 0.25 s, measured 0.5 s\n"));  // without the first step, which warms up
  EXPECT_THAT(text, HasSubstr("predicted 2.0 MiB, measured 3.0 MiB\n"));
  EXPECT_THAT(text, HasSubstr("predicted 4.0 MiB, measured 6.0 MiB\n"));
  EXPECT_THAT(predicted_section(run), HasSubstr("<th>step</th><td>0.25 s</td><td>0.5 s</td>"));
}

TEST(PredictedStep, NeedsAPrediction) {
  EXPECT_EQ(predicted_text(RecordedRun()), "");
  EXPECT_EQ(predicted_section(RecordedRun()), "");
}

TEST(PredictedStep, RefusesOtherTexts) {
  for (const char* text : {"", "[]", "{}", R"({"step_seconds": 1, "peak_bytes": 2})",
                           R"({"step_seconds": "1", "peak_bytes": 2, "roles": []})",
                           R"({"step_seconds": 1, "peak_bytes": 2, "roles": [3]})"})
    EXPECT_THROW(parse_predicted_step(text), Error) << text;
}

}  // namespace
}  // namespace colossal::report::predicted_step_test
