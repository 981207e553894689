// Which checkpoint a run goes on from: rank 0 looks into the folder, all follow.
#pragma once
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/folder.h"

namespace colossal::checkpoint {

/// step_folders(folder) as rank 0 sees them, on every rank, because the file system of another rank may lag behind.
/// Communication: a flag by all_reduce, and two broadcasts.
/// Errors: those of step_folders(), the same on every rank.
StepFolders agreed_steps(const std::string& folder, comm::Group& world);

struct Found {
  std::string path;  ///< of what was loaded
  int64_t step = 0;
  std::vector<Error> damaged{};  ///< what is wrong with newer ones, which were passed over; newest first
};

/// Fills `state` as load() does: from the checkpoint of step `wanted`, or, if none is wanted, from the newest of
/// `steps.complete` that is not damaged.
///
/// Communication: every rank of `world` must call, with the same steps; that of load() for each checkpoint that is
/// tried.
/// Errors: the same on every rank, and nothing was changed: no checkpoint of that step, or a damaged one; no complete
///         checkpoint, with what those in `steps.skipped` lack; every complete one is damaged; one of another model,
///         optimizer or run (`check`), which is never passed over (OtherRun).
Found load_newest(const std::string& folder, const StepFolders& steps, std::optional<int64_t> wanted,
                  TrainingState& state, comm::Group& world, const tensor::Place& place,
                  const ProgressCheck& check = {});

}  // namespace colossal::checkpoint
