// The folder of checkpoints on disk: names, what is complete, and the one moment at which a new one becomes visible.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace colossal::checkpoint {

/// folder/step-000100, folder/.step-000100.partial
std::string step_path(const std::string& folder, int64_t step);
std::string partial_path(const std::string& folder, int64_t step);

/// The entries of a folder of checkpoints that have the name of a step.
struct StepFolders {
  std::vector<int64_t> complete{};           ///< steps whose folder has a manifest, ascending
  std::map<int64_t, std::string> skipped{};  ///< for each of the other steps: its path and what is wrong with it

  int64_t newest() const { return complete.empty() ? -1 : complete.back(); }
  /// The texts of the skipped steps after `step`, joined; empty if there are none.
  std::string skipped_after(int64_t step) const;
};

/// Reads the names in `folder`. Without such a folder both lists are empty.
/// Errors ("checkpoint"): the folder exists but cannot be read.
StepFolders step_folders(const std::string& folder);

/// step_folders(folder).complete
std::vector<int64_t> complete_steps(const std::string& folder);

/// Removes what unfinished saves left, then makes an empty partial folder.
void begin_partial(const std::string& folder, int64_t step);
/// Gives the partial folder its final name in one step, in the place of a checkpoint of the same step if there is one,
/// and flushes.
void publish(const std::string& folder, int64_t step);
/// Removes all but the `keep_last` newest; never `step`. What cannot be removed stays: it does no harm. If the
/// folder cannot be read, nothing is removed.
void prune(const std::string& folder, int64_t step, int keep_last);

/// Renames the checkpoint of `step`, so that nobody takes it for one of this run, and returns where it lies:
/// folder/step-000100.unused, or with a number behind where that is taken. Nothing of it is lost. Errors: it cannot be
/// renamed.
std::string set_aside(const std::string& folder, int64_t step);

}  // namespace colossal::checkpoint
