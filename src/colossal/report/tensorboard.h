// A writer of event files for TensorBoard that does not need its library: TFRecord framing around encoded Event
// messages.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "colossal/report/record_file.h"
#include "colossal/report/step_metrics.h"

namespace colossal::report {

/// A writer of scalars to `<folder>/events.out.tfevents.<seconds>.<host>.<pid>`. A resumed run creates a new file in
/// the same folder, and TensorBoard joins the files. A mark at the start of the new file makes TensorBoard drop older
/// values of steps after `resumed_after` (the step of the checkpoint; no value = of all steps).
/// Errors ("tensorboard"): the file cannot be created; or it cannot be written, and the scalars remain pending until
/// the next flush.
class EventWriter {
 public:
  explicit EventWriter(const std::string& folder, std::optional<int64_t> resumed_after = std::nullopt);
  void scalar(std::string_view tag, int64_t step, double value);
  /// Writes the scalars of one step: the values of its rows, except rows with the tag "-" (Metric::tag). Flushes.
  void write(const StepMetrics& metrics);
  /// Passes all written scalars to the system.
  void flush() { file_.flush(); }
  const std::string& path() const { return file_.path(); }

 private:
  void record(const std::string& event);
  RecordFile file_;
};

/// Return the CRC32C (Castagnoli) of the bytes, and the rotated form that TFRecord stores.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace colossal::report
