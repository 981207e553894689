#include "colossal/base/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal {

void RunFolder::create() const {
  require(!path_.empty(), "run", "run.folder must not be empty; name a folder for the results");
  create_folder(checkpoints());
  create_folder(tensorboard());
  require(::access(path_.c_str(), W_OK) == 0, "run", "cannot write to the run folder ", path_,
          "; name another with --run.folder=FOLDER");
}

std::shared_ptr<const void> RunFolder::lock() const {
  const std::string path = path_ + "/.lock";
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  require(file >= 0, "run", "cannot open ", path, ": ", std::strerror(errno));
  const std::shared_ptr<const void> held(nullptr, [file](const void*) { close(file); });
  require(flock(file, LOCK_EX | LOCK_NB) == 0, "run", "another run is writing to ", path_,
          "; wait for it, or choose another run.folder");
  return held;
}

}  // namespace colossal
