// Estimates the step of a deep model from steps of the same layout with few blocks, which are recorded in a fraction of
// the time.
//
//   if (const auto step = predict::shallow_step(run, cluster)) rank(step->seconds, step->peak_bytes);
#pragma once
#include <optional>

#include "colossal/plan/cluster.h"
#include "colossal/run/config.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

struct ShallowStep {
  double seconds = 0;     ///< duration of a step
  double peak_bytes = 0;  ///< peak memory of the fullest rank, without host memory
};

/// Records the layout with one and with two blocks in each stage of the pipeline, and continues the lines to the blocks
/// of the main model: seconds, and the peaks of forward, the halves of backward, and the update, each of which grows by
/// the same bytes with every block. Ranks have equal numbers of blocks, so a pipeline with a cut of its own may differ.
/// The main model must have blocks with equal costs. Returns nothing for layouts whose memory does not grow with the
/// blocks: tiers, memory.recompute = "auto", parallel.max_gathered_mib. No communication. Errors: those of
/// record_stages() and predict_step().
std::optional<ShallowStep> shallow_step(const train::ConfiguredRun& run, const plan::Cluster& cluster);

/// Returns the work of shallow_step(), as recording_work().
double shallow_work(const run::Config& config);

}  // namespace colossal::predict
