// What one training step measured, and metrics.jsonl: one JSON object a line, in the order of the steps.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/report/record_file.h"

namespace colossal::report {

/// In bytes, with memory.device: what ranks had on their devices at most in a step, of the rank that had most, and what
/// all of them together copied from host memory and back.
struct DeviceMetrics {
  int64_t model_bytes = 0, peak_bytes = 0;  ///< parameters and states; everything
  int64_t bytes_in = 0, bytes_out = 0;
};

/// Of all ranks together, in bytes: where parameters, gradients and states lie at the end of a step, and what moved in
/// it.
struct TierMetrics {
  int64_t host_bytes = 0, disk_bytes = 0;
  int64_t bytes_read = 0, bytes_written = 0;  ///< of the disk
  std::optional<DeviceMetrics> device = {};
};

struct StepMetrics {
  int64_t step = 0;  // counted from 1
  double loss = 0;   // mean over the labels of the global batch, nats
  double learning_rate = 0;
  double grad_norm = 0;  // before clipping
  int64_t tokens = 0;    // of the global batch; of an image its patches and the class token
  double tokens_per_second = 0;
  int64_t peak_bytes = 0;                 // of the rank that uses most
  double seconds = 0;                     // of this step
  std::optional<double> mfu = {};         // share of the measured matmul peak, 0 to 1, of models that tell their costs
  std::optional<TierMetrics> tiers = {};  // with tiers of [memory]
  std::optional<double> stall_seconds = {};  // of stalls that ended since the step before
  std::optional<double> eval_loss = {};      // on the steps that evaluated
  std::optional<double> perplexity = {};     // exp(eval_loss), of models that continue text
  std::optional<double> accuracy = {};       // share of held-out labels found, 0 to 1, of all other models
};

/// One line without its end. NaN and infinities, which JSON lacks, are written as the texts "nan", "inf", "-inf".
std::string to_json_line(const StepMetrics& metrics);

/// Appends a line a step, handed to the system at once so that a killed process loses none.
class MetricsWriter {
 public:
  /// Opens for appending. With `resumed_after` (the step of the checkpoint), lines of later steps and a line cut short
  /// by a kill are dropped first, in one atomic replacement; without it an old file is started anew.
  /// Errors ("metrics"): the file cannot be opened, or an old line is not a metrics object.
  MetricsWriter(const std::string& path, std::optional<int64_t> resumed_after);

  /// Errors ("metrics"): the line cannot be written (a full disk); it waits for the next call.
  void write(const StepMetrics& metrics);

 private:
  RecordFile file_;
};

/// Lines that could not be read, and the first one's number.
struct DamagedLines {
  int64_t count = 0, first = 0;
};

/// The steps of a metrics.jsonl that may be damaged. A line that cannot be read is counted in `damaged` and left out. A
/// step that is there twice counts as its later line says, and drops the earlier lines of later steps.
/// Errors ("file"): the file cannot be read.
std::vector<StepMetrics> salvage_metrics(const std::string& path, DamagedLines& damaged);

/// Every step of a metrics.jsonl. A last line without its end (a kill while writing) is left out.
/// Errors: a missing file, or something else than a file; a line that is no object of these keys, with its number.
std::vector<StepMetrics> read_metrics(const std::string& path);

}  // namespace colossal::report
