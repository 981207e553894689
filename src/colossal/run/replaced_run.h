// A run that another run overwrites. It is set aside whole, and deleted only when the new run has a complete
// checkpoint.
//
//   <run folder>/checkpoints.replaced/step-000300/    its checkpoints, and the other files of the run:
//                                     metrics.jsonl, config.toml, report.html, tensorboard/, reference/, ...
//
// The folder is renamed to this name, and back, with one rename each. If a process is killed at any time, restore_run()
// therefore finds one of the two runs whole.
#pragma once
#include <optional>
#include <string>

#include "colossal/base/run_folder.h"

namespace colossal::run {

/// Sets the run in `folder` aside. No other run may be set aside there. Errors: a file system that refuses.
void set_run_aside(const RunFolder& folder);

/// Restores a run whose replacement ended before its first complete checkpoint, and deletes the replacement's files,
/// except its RunFolder::reference(), which becomes next_reference() for another start of the replacement. If the
/// replacement has a checkpoint, deletes the run that was set aside. Returns true if a run was restored. Errors: a file
/// system that refuses.
bool restore_run(const RunFolder& folder);

/// Makes RunFolder::next_reference(), if there is one, the reference() of the run that starts. Call it after the
/// earlier run is set aside. Errors: a file system that refuses.
void place_reference(const RunFolder& folder);

/// Returns the newest checkpoint of a run that is set aside, unless its replacement has a checkpoint.
std::optional<std::string> checkpoint_set_aside(const RunFolder& folder);

/// Deletes the run that is set aside, if there is one. Files that cannot be deleted are left, because they do no harm.
void remove_replaced_run(const RunFolder& folder);

}  // namespace colossal::run
