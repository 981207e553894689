// The prediction of a run's step beside what the run measured.
//
//   const RecordedRun run = read_run("runs/auto");
//   std::fputs(predicted_text(run).c_str(), stderr);      // "" for a run without a prediction
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace colossal::report {

struct RecordedRun;

/// What prediction.json says about a step, of the fullest rank.
struct PredictedStep {
  double seconds = 0;
  int64_t device_bytes = 0;    ///< tensors of a rank, without host memory of tiers
  int64_t resident_bytes = 0;  ///< memory of the process
};

/// Names of the metrics that a run with a prediction records in each step: the most of any rank.
inline constexpr const char* kDevicePeak = "device_peak_bytes";
inline constexpr const char* kResidentPeak = "resident_bytes";

/// Reads a prediction (plan::to_json). Errors ("report"): the text is no such object.
PredictedStep parse_predicted_step(const std::string& json);

/// A quantity as texts: "step" "0.92 s" "0.95 s".
struct PredictedRow {
  std::string name, predicted, measured;
};
/// Returns the rows of a run: seconds of a step (median), device memory and resident memory (maximum of all steps but
/// the first). A quantity that was not measured is "-". Empty if the run has no prediction.
std::vector<PredictedRow> predicted_rows(const RecordedRun& run);
/// Returns a line for each row; empty without a prediction.
std::string predicted_text(const RecordedRun& run);
/// Returns the section of the report page, as HTML; empty without a prediction.
std::string predicted_section(const RecordedRun& run);

}  // namespace colossal::report
