// Event files that TensorBoard reads, written without it: TFRecord framing around hand-encoded Event messages.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "colossal/report/record_file.h"
#include "colossal/report/step_metrics.h"

namespace colossal::report {

/// Writes scalars to `<folder>/events.out.tfevents.<seconds>.<host>.<pid>`. A run that resumes opens a new file in the
/// same folder; TensorBoard joins them and, by a mark at the head of the new one, forgets what older files say of later
/// steps than `resumed_after` (the step of the checkpoint; nothing: of all steps).
/// Errors ("tensorboard"): the file cannot be created; or not be written, and what was to be waits for the next flush.
class EventWriter {
 public:
  explicit EventWriter(const std::string& folder, std::optional<int64_t> resumed_after = std::nullopt);
  void scalar(std::string_view tag, int64_t step, double value);
  /// Writes the scalars of one step: those of its rows that have a tag (Metric::tag).
  void write(const StepMetrics& metrics);
  /// Hands what was written to the system.
  void flush() { file_.flush(); }
  const std::string& path() const { return file_.path(); }

 private:
  void record(const std::string& event);
  RecordFile file_;
};

/// CRC32C (Castagnoli) of the bytes, and the rotated form that TFRecord stores.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace colossal::report
