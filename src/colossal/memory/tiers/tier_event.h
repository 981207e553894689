// What happens to the tensors of a TieredHome, as it is recorded on request.
#pragma once
#include <cstddef>
#include <cstdint>

namespace colossal::memory {

struct TierEvent {
  enum class Kind {
    Set,     ///< it has new values from memory: Home::keep(), Kept::replace(); it is in the host
    Bring,   ///< somebody works with it from now on; it is in the host
    Put,     ///< and not any more
    Change,  ///< the same, and its values are others
    Gone,    ///< nobody wants its values any more: Kept::forget(), or its end
    Read,    ///< it begins to come from the disk; it takes room in the host
    Write,   ///< it begins to be written to the disk
    Leave,   ///< it takes no room in the host any more
  } kind;
  size_t number;  ///< of the tensor; one that ended leaves its own to the next one that comes
  int64_t bytes;  ///< of the host that it takes while it is there
};

}  // namespace colossal::memory
