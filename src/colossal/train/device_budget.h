// Refuses a run whose step needs more than the device has, before its first step.
//
//   train::check_device_budget({config, models});
//   // [memory] device must be at least 9.1 GiB: got 4GiB; set memory.recompute = "block", with which 3.2 GiB suffice
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "colossal/run/config.h"
#include "colossal/train/run_models.h"

namespace colossal::train {

/// Returns the smallest memory.device that a refused step of the run names and that works on all ranks, from recorded
/// steps (train/record_step.h) of the first rank of each pipeline stage. Requires: memory.device is set.
/// No communication. Time: a few recorded steps for each stage. Errors: those of record_step().
int64_t least_device_budget(const ConfiguredRun& run);

/// Returns the config with other numbers of micro-batches, at most `most`, each the next that divides the rows of a
/// replica and is at least twice the one before.
std::vector<run::Config> in_more_micro_batches(const run::Config& config,
                                               size_t most = std::numeric_limits<size_t>::max());

/// Returns the config with memory.device = `bytes`, and parallel.zero = 3 in place of 1 or 2, which that refuses.
run::Config with_device_budget(run::Config config, int64_t bytes);

/// The memory of a machine, where it is known.
struct MachineMemory {
  int64_t device = 0;  ///< of the accelerator of a rank; 0 = not known, or there is none
  int64_t host = 0;    ///< for the ranks of the machine together; 0 = not known
  int64_t ranks = 1;   ///< how many these are
};

/// Refuses a run whose step needs more than memory.device, or without it more than the accelerator has. The message has
/// the smallest that works, and the first of these changes that is enough, with what it needs, each on top of those
/// before it:
///   recomputation
///   more micro-batches
///   memory.device, with the rest in the memory of the host, or on memory.disk if that has no room; alone and with more
///   micro-batches. Only for a run without tiers
///   a smaller training.batch_size, which changes what the run learns; the others change no number but by rounding
/// Checks nothing with memory.recompute = "auto", whose choice refuses a budget itself, and where a step cannot be
/// recorded. No communication. Time: one recorded step for each stage of a run that fits. Errors ("memory"): as above.
void check_device_budget(const ConfiguredRun& run, const MachineMemory& machine = {});

}  // namespace colossal::train
