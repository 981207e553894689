// Steps of a run, as tests write and read them.
//
//   writer.write(test::step_of(1, {{"loss", 2.5}, {"tokens", int64_t{64}}}));
//   EXPECT_LT(test::last(steps, "loss"), test::first(steps, "loss"));
#pragma once
#include <initializer_list>
#include <optional>
#include <utility>

#include "colossal/base/known_metrics.h"
#include "colossal/report/recorded_steps.h"
#include "colossal/report/step_metrics.h"

namespace colossal::test {

/// Returns a step with rows of the library's own metrics.
inline report::StepMetrics step_of(int64_t step, std::initializer_list<std::pair<const char*, Metric::Value>> values) {
  report::StepMetrics metrics(step);
  for (const auto& [name, value] : values) metrics.add(known_metric(name, value));
  return metrics;
}

/// Returns the value of the first or the last step, which must have one.
inline double first(const report::RecordedSteps& steps, std::string_view name) { return steps.value(name, 0).value(); }
inline double last(const report::RecordedSteps& steps, std::string_view name) {
  return steps.value(name, steps.size() - 1).value();
}

}  // namespace colossal::test
