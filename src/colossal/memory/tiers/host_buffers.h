// Host buffers within a budget.
//
//   memory::HostBuffers buffers(int64_t{8} << 30);
//   at::Tensor buffer = buffers.take(memory::whole_blocks(bytes));   // a disk reads and writes it in place
//   buffers.give_back(std::move(buffer));
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "colossal/memory/tiers/device_copy.h"

namespace colossal::memory {

/// A pool that uses returned buffers again. New memory, which the system fills with zeros, costs about half as much as
/// reading it from a disk. Thread safety: none.
class HostBuffers {
 public:
  /// `budget`: bytes of all buffers, including idle ones. `pinned`: buffers are page-locked, so that copies of devices
  /// overlap with other work of the host. `device`: the CPU, or meta for buffers without memory.
  explicit HostBuffers(int64_t budget, bool pinned = false, at::Device device = at::kCPU)
      : budget_(budget), pinned_(pinned), device_(device) {}
  /// Waits for the copies of idle buffers.
  ~HostBuffers();
  HostBuffers(const HostBuffers&) = delete;
  HostBuffers& operator=(const HostBuffers&) = delete;

  /// Returns uint8 [bytes], as empty_aligned() makes it; no device copies from or to it any more. The first choice is
  /// an idle buffer of that size whose copies are over. The second choice is the idle buffer of the nearest size, whose
  /// pages are extended or cut; pinned ones are never resized. The last choice is new memory. If the budget has no
  /// room, the host waits for the copies of idle buffers and reuses or frees them. If in_use() + bytes is more than the
  /// budget, the buffers exceed it.
  at::Tensor take(int64_t bytes);
  /// Returns a buffer to the pool. `under_way`: its copies that a device may not have finished.
  void give_back(at::Tensor buffer, DeviceCopy under_way = {});

  int64_t in_use() const { return in_use_; }              ///< bytes of buffers that were taken and not given back
  int64_t held() const { return in_use_ + idle_bytes_; }  ///< bytes of all buffers, including idle ones
  int64_t peak() const { return peak_; }                  ///< peak of held()

 private:
  struct Idle {
    at::Tensor buffer;
    DeviceCopy under_way;
  };
  using IdleOnes = std::multimap<int64_t, Idle>;  // sorted by size, and within a size by the time of their return
  at::Tensor take_idle(IdleOnes::iterator found);
  IdleOnes::iterator nearest(int64_t bytes);  // returns the end if no buffer is idle
  at::Tensor other_idle(int64_t bytes);       // returns an undefined tensor if no buffer can be resized

  const int64_t budget_;
  int64_t in_use_ = 0, idle_bytes_ = 0, peak_ = 0;
  bool pinned_;
  const at::Device device_;
  IdleOnes idle_;
};

}  // namespace colossal::memory
