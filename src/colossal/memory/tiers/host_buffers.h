// Buffers of the host within a budget.
//
//   memory::HostBuffers buffers(int64_t{8} << 30);
//   at::Tensor buffer = buffers.take(memory::whole_blocks(bytes));   // what a disk reads and writes where it is
//   buffers.give_back(std::move(buffer));
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "colossal/memory/tiers/device_copy.h"

namespace colossal::memory {

/// Buffers that were given back are used again. New memory, which the system fills with zeros, costs about half as much
/// as reading it from a disk. Thread safety: none.
class HostBuffers {
 public:
  /// `budget`: bytes of all buffers, idle ones too. `pinned`: devices copy from and to them while the host goes on.
  explicit HostBuffers(int64_t budget, bool pinned = false) : budget_(budget), pinned_(pinned) {}
  /// Waits for the copies of idle ones.
  ~HostBuffers();
  HostBuffers(const HostBuffers&) = delete;
  HostBuffers& operator=(const HostBuffers&) = delete;

  /// Returns uint8 [bytes], as empty_aligned() makes it, which no device copies from or to any more. An idle buffer of
  /// that size whose copies are over is used first. Otherwise the buffer takes the pages of the idle buffer of the
  /// nearest size, and new memory if these are too few or pinned. If the budget has no room, the host waits for the
  /// copies of another idle buffer. If in_use() + bytes is more than the budget, the buffers exceed it.
  at::Tensor take(int64_t bytes);
  /// `under_way`: copies of it that a device may not have made yet.
  void give_back(at::Tensor buffer, DeviceCopy under_way = {});

  int64_t in_use() const { return in_use_; }
  int64_t held() const { return in_use_ + idle_bytes_; }  ///< with idle ones
  int64_t peak() const { return peak_; }                  ///< of held()

 private:
  struct Idle {
    at::Tensor buffer;
    DeviceCopy under_way;
  };
  using IdleOnes = std::multimap<int64_t, Idle>;  // by size, those of one size in the order in which they came
  at::Tensor take_idle(IdleOnes::iterator found);
  IdleOnes::iterator nearest(int64_t bytes);  // the end: none is idle
  at::Tensor other_idle(int64_t bytes);       // undefined: none that can be resized

  const int64_t budget_;
  int64_t in_use_ = 0, idle_bytes_ = 0, peak_ = 0;
  bool pinned_;
  IdleOnes idle_;
};

}  // namespace colossal::memory
