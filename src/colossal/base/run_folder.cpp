#include "colossal/base/run_folder.h"

#include <unistd.h>

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

}  // namespace colossal
