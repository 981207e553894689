// Manages the folder of checkpoints on disk: names, completeness, and the atomic rename that makes a new checkpoint
// visible.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace colossal::checkpoint {

/// Return folder/step-000100 and folder/.step-000100.partial.
std::string step_path(const std::string& folder, int64_t step);
std::string partial_path(const std::string& folder, int64_t step);

/// Entries of a folder of checkpoints that are named like a step.
struct StepFolders {
  std::vector<int64_t> complete{};           ///< steps whose folder has a manifest, ascending
  std::map<int64_t, std::string> skipped{};  ///< path and reason of each other step, which is incomplete

  int64_t newest() const { return complete.empty() ? -1 : complete.back(); }
  /// Returns the texts of the skipped steps after `step`, joined; "" if there are none.
  std::string skipped_after(int64_t step) const;
};

/// Reads the names in `folder`. If there is no such folder, both lists are empty.
/// Errors ("checkpoint"): the folder exists but cannot be read.
StepFolders step_folders(const std::string& folder);

/// Returns step_folders(folder).complete.
std::vector<int64_t> complete_steps(const std::string& folder);

/// Returns the run folder to which a folder of checkpoints belongs and whose lock (RunLock) a save needs: its parent if
/// it is named `checkpoints`, else the folder itself.
std::string run_folder_of(const std::string& folder);

/// Removes the folders that unfinished saves left, then creates an empty partial folder. The caller holds the lock of
/// run_folder_of(folder), so no other process is writing one of them.
void begin_partial(const std::string& folder, int64_t step);
/// Renames the partial folder to its final name and flushes. It atomically replaces a checkpoint of the same step, if
/// there is one. On a file system without atomic exchange, neither of the two is visible for a moment.
void publish(const std::string& folder, int64_t step);
/// Removes all but the `keep_last` newest checkpoints, never `step`; 0 or less = keep all. Ignores checkpoints that it
/// cannot remove: they do no harm. If it cannot read the folder, it removes nothing.
void prune(const std::string& folder, int64_t step, int keep_last);

/// Renames the checkpoint of `step`, so that it is not mistaken for one of this run. Returns its new path:
/// folder/step-000100.unused, with a number appended if that name is taken. No data are lost. Errors: the folder cannot
/// be renamed.
std::string set_aside(const std::string& folder, int64_t step);

}  // namespace colossal::checkpoint
