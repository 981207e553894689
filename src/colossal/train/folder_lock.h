// The lock of the run folder to which a training saves its checkpoints.
//
//   FolderLock lock;                                              // a member of the training
//   checkpoints.save(training, beside, lock.hold(folder, mesh.all()));
#pragma once
#include <memory>
#include <string>

#include "colossal/base/run_folder.h"
#include "colossal/comm/group.h"

namespace colossal::train {

/// Holds the lock of one run folder on rank 0, so that no other process writes checkpoints to it.
class FolderLock {
 public:
  /// Takes the lock of the run folder that has the checkpoints of `folder` (checkpoint::run_folder_of()) and keeps it
  /// until this object ends or another folder is locked. Returns it; null on other ranks than 0. Collective.
  /// Communication: a flag by all_reduce.
  /// Errors ("run"): another process, or another training of this one, holds the lock; the same on every rank.
  const RunLock* hold(const std::string& folder, comm::Group& world);

 private:
  std::string run_folder_;
  std::unique_ptr<RunLock> lock_;  // null on other ranks than 0
};

}  // namespace colossal::train
