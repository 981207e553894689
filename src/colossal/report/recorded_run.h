// All records of a run folder, and their summary in a few numbers. Reading tolerates damage, and runs that are still
// training.
//
//   const RecordedRun run = read_run("runs/quickstart");
//   for (const std::string& what : run.missing) warn(what);
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/report/metrics.h"
#include "colossal/report/predicted_step.h"
#include "colossal/report/recorded_steps.h"
#include "colossal/report/run_records.h"

namespace colossal::report {

/// The records of one run.
struct RecordedRun {
  std::string name;                   ///< the folder as the user named it
  RecordedSteps steps;                ///< in order of steps, without repetition
  MetricNames names;                  ///< how the metrics of `steps` are drawn; empty for a run of an older version
  std::vector<RankMetrics> ranks;     ///< sorted by step, none after the last of `steps`; empty if not recorded
  std::vector<StartRecord> starts;    ///< sorted by time; empty if the run did not record them
  std::vector<SampleRecord> samples;  ///< sorted by step
  std::string config;                 ///< the resolved config as TOML; empty if it is missing
  std::optional<PredictedStep> prediction = {};  ///< of a step; no value if the run has none
  std::vector<std::string> missing;              ///< one sentence for each file or part that could not be read
};

/// Reads config.toml, metrics.jsonl, metrics.json, history.jsonl, ranks.jsonl and prediction.json of the folder. If a
/// step occurs twice, its later line counts, and earlier lines of later steps are removed.
/// Errors ("report"): the folder does not exist or is a file. It has neither config.toml nor metrics.jsonl. One of the
/// files is not a regular file.
/// Errors ("file"): a file cannot be read.
RecordedRun read_run(const std::string& folder);

/// The summary of one run.
struct RunSummary {
  int64_t steps = 0;
  double seconds = 0, tokens = 0;                         ///< totals over all steps
  std::optional<double> first_loss, loss;                 ///< losses of the first and of the last step; no value if the
                                                          ///< step has none
  std::optional<double> eval_loss, perplexity, accuracy;  ///< results of the last evaluation
  double tokens_per_second = 0;                           ///< median over the steps without the first, which includes
                                                          ///< the warm-up
  std::optional<double> mfu;                              ///< median over the same steps; no value if the last step has
                                                          ///< none
  int64_t peak_bytes = 0;                                 ///< maximum over the ranks
};

RunSummary summarize(const RecordedSteps& steps);

/// Returns "4 ranks: data 2 x tensor 2"; axes of size 1 are left out.
std::string layout_text(const std::vector<MeshAxis>& mesh);

}  // namespace colossal::report
