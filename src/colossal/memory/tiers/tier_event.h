// Events of the tensors of a TieredStore, which it records on request.
#pragma once
#include <cstddef>
#include <cstdint>

namespace colossal::memory {

struct TierEvent {
  enum class Kind {
    Set,     ///< the tensor got new values from memory by offload() or replace(); it is in host memory
    Borrow,  ///< a borrow started; the tensor is in host memory
    Return,  ///< a borrow ended without changes
    Change,  ///< a borrow ended, and the values changed
    Gone,    ///< the values are discarded: OffloadedTensor::discard(), or the handle was destroyed
    Read,    ///< a read from the disk started; the tensor takes room in host memory
    Write,   ///< a write to the disk started
    Leave,   ///< the tensor takes no room in host memory any more
  } kind;
  size_t number;  ///< number of the tensor; after its end a later tensor may get it
  int64_t bytes;  ///< bytes of host memory that the tensor takes while it is there
};

}  // namespace colossal::memory
