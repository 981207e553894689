// The run that another one overwrites: set aside whole, and given up only when the new one has a complete checkpoint.
//
//   <run folder>/checkpoints.replaced/step-000300/    its checkpoints, with what else was in the run folder:
//                                     metrics.jsonl, config.toml, report.html, tensorboard/, ...
//
// The folder gets that name, and the old one back, by one rename each: whenever a process dies, restore_run() finds
// either run whole.
#pragma once
#include <optional>
#include <string>

#include "colossal/base/run_folder.h"

namespace colossal::run {

/// Sets the run in `folder` aside. Nothing may be set aside there yet. Errors: a file system that refuses.
void set_run_aside(const RunFolder& folder);

/// Brings back a run whose replacement ended before its first complete checkpoint; what that left is removed. Removes
/// one whose replacement has a checkpoint. Returns whether a run was brought back. Errors: a file system that refuses.
bool restore_run(const RunFolder& folder);

/// The newest checkpoint of a run that is set aside, where its replacement has none.
std::optional<std::string> checkpoint_set_aside(const RunFolder& folder);

/// Gives up what is set aside, if anything is. What cannot be removed stays: it does no harm.
void remove_replaced_run(const RunFolder& folder);

}  // namespace colossal::run
