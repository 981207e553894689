// metrics.jsonl: one JSON object per step, in the order of the steps. Its writer and its readers.
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

/// One line without its end: `step`, then the rows in their order. A dotted name is a member of the object that its
/// first row begins. NaN and infinities, which JSON lacks, are the texts "nan", "inf" and "-inf".
std::string to_json_line(const StepMetrics& metrics);

/// Appends a line per step and passes it to the system at once, so that a killed process loses none.
class MetricsWriter {
 public:
  /// Opens `lines` for appending. With `resumed_after` (the step of the checkpoint), lines of later steps and a line
  /// cut short by a kill are removed first, in one atomic replacement; without it the file is emptied. `names` is the
  /// metrics.json beside it; a damaged one is written again.
  /// Errors ("metrics"): the file cannot be opened, or an old line is not a metrics object.
  MetricsWriter(const std::string& lines, std::string names, std::optional<int64_t> resumed_after);

  /// Writes the line, and adds names that appear for the first time to metrics.json.
  /// Errors: the line ("metrics") or metrics.json ("file") cannot be written (a full disk); the next call tries again.
  void write(const StepMetrics& metrics);

 private:
  RecordFile file_;
  std::string names_path_;
  MetricNames names_;
  bool has_new_names_ = false;
};

/// The number of lines that cannot be read, and the number of the first one.
struct DamagedLines {
  int64_t count = 0, first = 0;
};

/// The steps of a metrics.jsonl that may be damaged. A line that cannot be read is counted in `damaged` and left out. A
/// step that is there twice counts as its later line says, and removes the earlier lines of later steps.
/// Errors ("file"): the file cannot be read.
RecordedSteps salvage_metrics(const std::string& path, DamagedLines& damaged);

/// Every step of a metrics.jsonl. A last line without its end (a kill while writing) is left out.
/// Errors: a missing file, or something else than a file; a line that is no object of numbers with an integer `step`,
/// with the number of the line.
RecordedSteps read_metrics(const std::string& path);

}  // namespace colossal::report
