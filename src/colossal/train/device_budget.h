// Refuses a run whose step needs more than memory.device, before its first step.
//
//   train::check_device_budget({config, models});
//   // [memory] device must be at least 9.1 GiB: got 4GiB; set memory.recompute = "block", with which 3.2 GiB suffice
#pragma once
#include <cstdint>

#include "colossal/train/run_models.h"

namespace colossal::train {

/// Returns the smallest memory.device that a refused step of the run names and that works on all ranks, from recorded
/// steps (train/record_step.h) of the first rank of each pipeline stage. Requires: the run has tiers.
/// No communication. Time: a few recorded steps for each stage. Errors: those of record_step().
int64_t least_device_budget(const ConfiguredRun& run);

/// Refuses a run that memory.device is too small for. The message has the smallest budget that works, and the first of
/// these changes that is enough, with what it needs: recomputation, then also more micro-batches. They change no number
/// of the run but by rounding. Checks nothing without memory.device, with memory.recompute = "auto", whose choice
/// refuses a budget itself, and where a step cannot be recorded.
/// No communication. Time: one recorded step for each stage of a run that fits. Errors ("memory"): as above.
void check_device_budget(const ConfiguredRun& run);

}  // namespace colossal::train
