// Keeps track of the free parts of a growing range.
//
//   memory::FreeSpace space;                          // has no length: space.take(100) is none
//   space.grow(256);
//   const std::optional<int64_t> at = space.take(100);   // 0, and [100, 256) is free
//   space.give_back(*at, 100);
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace colossal::memory {

/// A best-fit allocator: it takes the smallest free run that is large enough, the first one of several. Free neighbours
/// are always joined.
/// Cost: the logarithm of the number of free runs. Thread safety: none.
class FreeSpace {
 public:
  /// Takes `bytes` (> 0) and returns their offset; none if no free run is long enough.
  std::optional<int64_t> take(int64_t bytes);
  /// Frees `bytes` at `offset`, which take() returned.
  void give_back(int64_t offset, int64_t bytes);
  /// Adds `bytes` free bytes at the end.
  void grow(int64_t bytes);

  int64_t end() const { return end_; }
  /// Returns the free bytes just before the end, with which a longer run would start after grow().
  int64_t tail() const;
  int64_t free_bytes() const { return free_; }

 private:
  using Run = std::map<int64_t, int64_t>::iterator;
  void remove(Run run);
  void add(int64_t offset, int64_t bytes);

  std::map<int64_t, int64_t> runs_;                // offset to bytes
  std::set<std::pair<int64_t, int64_t>> by_size_;  // bytes, offset
  int64_t end_ = 0, free_ = 0;
};

}  // namespace colossal::memory
