// Which parts of a growing range are free.
//
//   memory::FreeSpace space;                          // of no length: space.take(100) is none
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

/// Best fit: the smallest run that is large enough, of several the first. Neighbours are always joined.
/// Cost: the logarithm of the number of runs. Thread safety: none.
class FreeSpace {
 public:
  /// Where `bytes` (> 0) were free and now are not; none where no run is that long.
  std::optional<int64_t> take(int64_t bytes);
  void give_back(int64_t offset, int64_t bytes);
  /// `bytes` more, all free, behind the end.
  void grow(int64_t bytes);

  int64_t end() const { return end_; }
  /// Free bytes just before the end: what a longer run would begin with.
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
