// Buffers of the host within a budget.
//
//   memory::HostBuffers buffers(int64_t{8} << 30);
//   at::Tensor buffer = buffers.take(memory::whole_blocks(bytes));   // what a disk reads and writes where it is
//   buffers.give_back(std::move(buffer));
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

namespace colossal::memory {

/// Those that were given back serve whoever takes one of their size: new memory costs about as much as a read of it
/// from a disk. A longer one would be charged for what nobody asked for. Thread safety: none.
class HostBuffers {
 public:
  /// `budget`: bytes of all buffers, idle ones too.
  explicit HostBuffers(int64_t budget) : budget_(budget) {}

  /// uint8 [bytes] as empty_aligned() makes it. Who takes more than the budget has (in_use() + bytes) exceeds it.
  at::Tensor take(int64_t bytes);
  void give_back(at::Tensor buffer);

  void set_budget(int64_t bytes) { budget_ = bytes; }

  int64_t in_use() const { return in_use_; }
  int64_t held() const { return in_use_ + idle_bytes_; }  ///< with idle ones
  int64_t peak() const { return peak_; }                  ///< of held()

 private:
  int64_t budget_, in_use_ = 0, idle_bytes_ = 0, peak_ = 0;
  std::multimap<int64_t, at::Tensor> idle_;  // by size
};

}  // namespace colossal::memory
