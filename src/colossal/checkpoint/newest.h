// Chooses the checkpoint from which a run continues: rank 0 reads the folder, and all ranks follow it.
#pragma once
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/checkpoint/folder.h"

namespace colossal::checkpoint {

/// Returns step_folders(folder) as rank 0 sees it, on every rank, because another rank may see an older state of a
/// shared file system.
/// Communication: a flag by all_reduce, and two broadcasts.
/// Errors: the same as step_folders(), on every rank.
StepFolders agreed_steps(const std::string& folder, comm::Group& world);

struct Found {
  std::string path;  ///< path of the loaded checkpoint
  int64_t step = 0;
  std::vector<Error> damaged{};  ///< errors of the damaged newer checkpoints that were skipped, newest first
};

/// Fills `state` like load(), from the checkpoint of step `wanted`. If none is wanted, uses the newest of
/// `steps.complete` that is not damaged. `unused` and `substitutes` are those of load().
///
/// Communication: every rank of `world` must call, with the same steps. The messages of load() for each checkpoint that
///                is tried.
/// Errors: the same on every rank, with nothing changed. The causes: no checkpoint of step `wanted`, or a damaged one;
///         no complete checkpoint (the message lists `steps.skipped`); all complete checkpoints are damaged. A
///         checkpoint of another model, optimizer or run (`check`) throws OtherRun and is never skipped.
Found load_newest(const std::string& folder, const StepFolders& steps, std::optional<int64_t> wanted,
                  TrainingState& state, comm::Group& world, const tensor::MeshCoordinates& coordinates,
                  const ProgressCheck& check = {}, const std::set<std::string>& unused = {},
                  const Substitutes& substitutes = {});

}  // namespace colossal::checkpoint
