#include "colossal/base/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal {
namespace {

std::string lock_path(const std::string& folder) { return folder + "/.lock"; }

}  // namespace

void RunFolder::create() const {
  require(!path_.empty(), "run", "run.folder must not be empty; name a folder for the results");
  create_folder(checkpoints());
  create_folder(tensorboard());
  require(::access(path_.c_str(), W_OK) == 0, "run", "cannot write to the run folder ", path_,
          "; name another with --run.folder=FOLDER");
}

RunLock::RunLock(const std::string& folder) : folder_(folder), process_(getpid()) {
  const std::string path = lock_path(folder);
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  const int error = errno;
  require(descriptor_ >= 0, "run", "cannot open ", path, ": ", std::strerror(error));
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const int reason = errno;
  close(descriptor_);
  require(reason == EWOULDBLOCK, "run", "cannot lock ", path, ": ", std::strerror(reason),
          "; choose a run.folder on a file system that has locks (flock)");
  throw Error("run", concat("another run is writing to ", folder, "; wait for it, or choose another run.folder"));
}

RunLock::~RunLock() {
  // A forked child shares the lock. Closing one of the descriptors does not release it, as long as the other is open.
  if (getpid() == process_) flock(descriptor_, LOCK_UN);
  close(descriptor_);
}

void RunLock::check() const {
  struct stat held = {}, found = {};
  const int error = ::stat(lock_path(folder_).c_str(), &found) == 0 ? 0 : errno;
  const bool is_there = error == 0;
  const bool is_known = is_there || error == ENOENT || error == ENOTDIR;
  if (!is_known || ::fstat(descriptor_, &held) != 0) return;  // the file system fails, which the next save reports
  require(is_there && held.st_dev == found.st_dev && held.st_ino == found.st_ino, "run", "the folder ", folder_,
          " must not be deleted, moved or recreated while a run writes to it: its file .lock was ",
          is_there ? "replaced" : "removed", "; nothing more is written to it; start the run again");
}

}  // namespace colossal
