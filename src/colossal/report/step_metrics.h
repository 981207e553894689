// The metric rows of one training step, which are checked when they are added, and their text on the progress line.
//
//   StepMetrics metrics(/*step=*/1);
//   metrics.add(known_metric("loss", 2.5));
//   metrics.add({.name = "rmse", .value = 0.25, .unit = "m", .plot = "Error", .line = "rmse %.3f"});
//   progress.update(metrics.step(), progress_line(metrics));      // "loss 2.5000  rmse 0.250"
//
// The printf format of a row says how it is written:
//
//   formatted({.name = "rmse", .value = 0.25, .line = "rmse %.3f"});                          // "rmse 0.250"
//   formatted({.name = "cache", .value = 1 << 20, .unit = "bytes", .line = "cache %s"});      // "cache 1.0 MiB"
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "colossal/base/metric.h"

namespace colossal::report {

/// The metrics of one step.
class StepMetrics {
 public:
  /// `step` counts from 1.
  explicit StepMetrics(int64_t step) : step_(step) {}

  /// Appends a row. All ranks add the same names, so all of them throw the same error.
  /// Errors ("metrics"): the name is already used by a row, by the object of dotted names or by a different metric of
  /// the library; a name or a progress line format that violates the rules of Metric.
  void add(Metric metric);
  void add(std::vector<Metric> metrics);

  int64_t step() const { return step_; }
  const std::vector<Metric>& rows() const { return rows_; }

 private:
  int64_t step_;
  std::vector<Metric> rows_;
  std::set<std::string> names_, objects_;  ///< names of the rows; and their objects, e.g. "tiers" for
                                           ///< "tiers.host_bytes"
};

/// Checks the format of a row. Errors ("metrics"): it is not text with one conversion, as Metric::line requires.
void check_format(const Metric& metric);

/// Returns the text of a row whose format check_format() accepts.
std::string formatted(const Metric& metric);

/// Returns the text of the progress line: the rows with a format, separated by two spaces. `loss` and
/// `tokens_per_second` are first; the others follow in the order of the rows.
std::string progress_line(const StepMetrics& metrics);

}  // namespace colossal::report
