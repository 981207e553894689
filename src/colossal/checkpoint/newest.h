// Which checkpoint a run goes on from: rank 0 looks into the folder, all follow.
#pragma once
#include "colossal/checkpoint/checkpoint.h"

namespace colossal::checkpoint {

/// Steps of the complete checkpoints in `folder` as rank 0 sees them, ascending, on every rank: a rank whose file
/// system lags behind chooses no other.
/// Communication: two broadcasts.
std::vector<int64_t> agreed_steps(const std::string& folder, comm::Group& world);

struct Found {
  std::string path;  ///< of what was loaded
  int64_t step = 0;
  std::vector<Error> damaged{};  ///< what is wrong with newer ones, which were passed over; newest first
};

/// Fills `state` as load() does: from the checkpoint of step `wanted`, or, if none is wanted, from the newest of
/// `steps` that is not damaged.
///
/// Communication: every rank of `world` must call, with the same steps; that of load() for each checkpoint that is
/// tried.
/// Errors: the same on every rank, and nothing was changed: no checkpoint of that step, or a damaged one; of all
///         `steps` none that is not; one of another model, optimizer or run (`check`), which is never passed over
///         (OtherRun).
Found load_newest(const std::string& folder, const std::vector<int64_t>& steps, std::optional<int64_t> wanted,
                  TrainingState& state, comm::Group& world, const tensor::Place& place,
                  const ProgressCheck& check = {});

}  // namespace colossal::checkpoint
