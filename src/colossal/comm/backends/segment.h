// A piece of zeroed memory that all ranks of a group can write: on the heap for threads, POSIX shared memory for
// processes.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

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

/// A named POSIX segment; the name is removed by `unlink_shared_segment`, the memory lives until the last mapping ends.
/// Errors: throws Error("comm", ...) where /dev/shm is missing, too small for `size` (it is reserved at once, so that a
/// full
///         /dev/shm is an error here and not a SIGBUS later) or forbidden; the message says how to do without it.
std::shared_ptr<Segment> create_shared_segment(const std::string& name, size_t size);
/// Errors: throws Error("comm", ...) when it does not exist or has another size.
std::shared_ptr<Segment> open_shared_segment(const std::string& name, size_t size);
void unlink_shared_segment(const std::string& name) noexcept;

/// Removes what is left in /dev/shm of segments whose name begins with `prefix`: the launcher's broom after a crash.
void unlink_shared_segments(const std::string& prefix) noexcept;

}  // namespace colossal::comm
