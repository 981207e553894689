#include "colossal/memory/sharing.h"

#include "colossal/base/error.h"

namespace colossal::memory {

Sharing Sharing::of_stage(int stage) {
  require(stage >= 0 && stage <= 3, "zero", "must be 0, 1, 2 or 3: got ", stage);
  return {stage >= 1, stage >= 2, stage >= 3};
}

}  // namespace colossal::memory
