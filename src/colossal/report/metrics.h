// The writer and the readers of metrics.jsonl, which has one JSON object per step, in the order of the steps.
//
//   MetricsWriter writer("runs/a/metrics.jsonl", "runs/a/metrics.json", /*resumed_after=*/std::nullopt);
//   writer.write(metrics);                                        // {"step":1,"loss":5.5,...}
//   const RecordedSteps steps = read_metrics("runs/a/metrics.jsonl");
//   steps.value("loss", 0);                                       // 5.5
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "colossal/report/metric_names.h"
#include "colossal/report/record_file.h"
#include "colossal/report/recorded_steps.h"
#include "colossal/report/step_metrics.h"

namespace colossal::report {

/// Returns the line of a step without its line end: `step`, then the rows in order. A dotted name is a member of an
/// object, which is placed at its first row. NaN and infinities, which JSON lacks, are written as "nan", "inf" and
/// "-inf".
std::string to_json_line(const StepMetrics& metrics);

/// A writer that appends one line per step and passes it to the system at once, so a killed process loses no line.
class MetricsWriter {
 public:
  /// Opens `lines` for appending. If `resumed_after` (the step of the checkpoint) has a value, one atomic replacement
  /// first removes lines of later steps and an incomplete line. Without a value the file is emptied. `names` is the
  /// metrics.json next to it; a damaged one is replaced.
  /// Errors ("metrics"): the file cannot be opened, or an old line is not a metrics object.
  MetricsWriter(const std::string& lines, std::string names, std::optional<int64_t> resumed_after);

  /// Appends the line of a step, and adds names that are new to metrics.json.
  /// Errors: the line ("metrics") or metrics.json ("file") cannot be written (a full disk); the next call tries again.
  void write(const StepMetrics& metrics);

 private:
  RecordFile file_;
  std::string names_path_;
  MetricNames names_;
  bool has_new_names_ = false;
};

/// The number of lines that cannot be read, and the line number of the first one.
struct DamagedLines {
  int64_t count = 0, first = 0;
};

/// Returns the steps of a metrics.jsonl that may be damaged. Lines that cannot be read are counted in `damaged` and
/// skipped. If a step occurs twice, its later line counts, and earlier lines of later steps are removed.
/// Errors ("file"): the file cannot be read.
RecordedSteps salvage_metrics(const std::string& path, DamagedLines& damaged);

/// Returns all steps of a metrics.jsonl. A last line without its line end (a kill while writing) is ignored.
/// Errors: the file is missing or not a regular file. A line is not an object of numbers with an integer `step`; the
/// message has the line's number.
RecordedSteps read_metrics(const std::string& path);

}  // namespace colossal::report
