#include "colossal/train/folder_lock.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/checkpoint/folder.h"
#include "colossal/comm/agreement.h"

namespace colossal::train {
namespace {

/// A folder that was deleted since it was locked is locked again, because scripts remove old checkpoints.
bool is_valid(const RunLock& lock) {
  try {
    lock.check();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

const RunLock* FolderLock::hold(const std::string& folder, comm::Group& world) {
  comm::agree(world, at::kCPU, [&] {
    if (world.rank() != 0) return;
    const std::string wanted = checkpoint::run_folder_of(folder);
    if (lock_ && wanted == run_folder_ && is_valid(*lock_)) return;
    lock_.reset();
    create_folder(wanted);
    lock_ = std::make_unique<RunLock>(wanted);
    run_folder_ = wanted;
  });
  return lock_.get();
}

}  // namespace colossal::train
