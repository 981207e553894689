#include "colossal/memory/tiers/free_space.h"

#include <iterator>

namespace colossal::memory {

std::optional<int64_t> FreeSpace::take(int64_t bytes) {
  const auto fitting = by_size_.lower_bound({bytes, 0});
  if (fitting == by_size_.end()) return std::nullopt;
  const auto [size, offset] = *fitting;
  remove(runs_.find(offset));
  if (size > bytes) add(offset + bytes, size - bytes);
  return offset;
}

void FreeSpace::give_back(int64_t offset, int64_t bytes) {
  const auto after = runs_.lower_bound(offset);
  if (after != runs_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      remove(before);
    }
  }
  if (after != runs_.end() && after->first == offset + bytes) {
    bytes += after->second;
    remove(after);
  }
  add(offset, bytes);
}

void FreeSpace::grow(int64_t bytes) {
  end_ += bytes;
  give_back(end_ - bytes, bytes);
}

int64_t FreeSpace::tail() const {
  if (runs_.empty()) return 0;
  const auto& [offset, bytes] = *runs_.rbegin();
  return offset + bytes == end_ ? bytes : 0;
}

void FreeSpace::remove(Run run) {
  free_ -= run->second;
  by_size_.erase({run->second, run->first});
  runs_.erase(run);
}

void FreeSpace::add(int64_t offset, int64_t bytes) {
  free_ += bytes;
  by_size_.insert({bytes, offset});
  runs_.emplace(offset, bytes);
}

}  // namespace colossal::memory
