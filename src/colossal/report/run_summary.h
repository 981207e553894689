// A summary of a run in a few numbers.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/report/recorded_steps.h"
#include "colossal/report/run_records.h"

namespace colossal::report {

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
