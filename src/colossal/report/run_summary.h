// The few numbers that stand for a whole run.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/report/recorded_steps.h"
#include "colossal/report/run_records.h"

namespace colossal::report {

struct RunSummary {
  int64_t steps = 0;
  double seconds = 0, tokens = 0;                         ///< of all steps
  std::optional<double> first_loss, loss;                 ///< of the first and the last step, if they have one
  std::optional<double> eval_loss, perplexity, accuracy;  ///< of the last evaluation
  double tokens_per_second = 0;                           ///< median of the steps but the first, which warms up
  std::optional<double> mfu;                              ///< likewise a median; empty if the last step has none
  int64_t peak_bytes = 0;                                 ///< of the largest rank
};

RunSummary summarize(const RecordedSteps& steps);

/// "4 ranks: data 2 x tensor 2", without the axes of one rank.
std::string layout_text(const std::vector<MeshAxis>& mesh);

}  // namespace colossal::report
