// Zeroed memory that all ranks of a group can write: heap memory for threads, memory without a name for processes.
#pragma once
#include <cstddef>
#include <memory>

#include "colossal/base/descriptor.h"

namespace colossal::comm {

class Segment {
 public:
  virtual ~Segment() = default;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 protected:
  Segment() = default;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Returns memory that threads of this process share through the pointer. Pages cost nothing until they are touched.
std::shared_ptr<Segment> make_heap_segment(size_t size);

/// Returns memory that processes share by passing the descriptor on (Handover). It has no name in any file system and
/// needs no space in /dev/shm. It is freed with its last descriptor and mapping, however the processes end. Errors:
/// throws Error("comm", ...) if `size` bytes are not available. All bytes are reserved at once, so that a lack of
/// memory is an error here and not a SIGBUS later. The message names another transport.
Descriptor create_shared_memory(size_t size);
/// Maps the memory; the descriptor may be closed afterwards. Errors: throws Error("comm", ...) if it has another size.
std::shared_ptr<Segment> map_shared_memory(const Descriptor& memory, size_t size);

}  // namespace colossal::comm
