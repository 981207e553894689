// A piece of zeroed memory that all ranks of a group can write: on the heap for threads, memory without a name for
// processes.
#pragma once
#include <cstddef>
#include <memory>

#include "colossal/comm/descriptor.h"

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

/// Shared by the threads of this process through the pointer itself. Pages cost nothing until touched.
std::shared_ptr<Segment> make_heap_segment(size_t size);

/// Memory that processes share by passing the descriptor on (Handover). It has no name in any file system, needs no
/// room in /dev/shm, and ends with its last descriptor and mapping, however the processes end. Errors: throws
/// Error("comm", ...) where `size` bytes cannot be had: they are reserved at once, so that lack of memory is an error
/// here and not a SIGBUS later; the message says how to do without it.
Descriptor create_shared_memory(size_t size);
/// Errors: throws Error("comm", ...) when it has another size.
std::shared_ptr<Segment> map_shared_memory(const Descriptor& memory, size_t size);

}  // namespace colossal::comm
