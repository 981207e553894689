// The text of a metric on the progress line, from the printf format of its row.
//
//   formatted({.name = "rmse", .value = 0.25, .line = "rmse %.3f"});                          // "rmse 0.250"
//   formatted({.name = "cache", .value = 1 << 20, .unit = "bytes", .line = "cache %s"});      // "cache 1.0 MiB"
#pragma once
#include <string>

#include "colossal/base/metric.h"

namespace colossal::report {

/// Checks the format of a row. Errors ("metrics"): it is not text with one conversion, as Metric::line requires.
void check_format(const Metric& metric);

/// Returns the text of a row whose format check_format() accepts.
std::string formatted(const Metric& metric);

}  // namespace colossal::report
