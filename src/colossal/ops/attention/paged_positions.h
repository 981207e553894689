// Mapping between the positions of a sequence and the pages that hold its tokens, all pages or a rank's part; see
// PagedSequence in paged.h.
#pragma once
#include <cstdint>

namespace colossal::ops {
namespace {  // one copy for each instruction set that includes it

/// Neighbouring keys that are always in one page: pages have a multiple of kPageUnit tokens (paged.h).
constexpr int64_t kPagedUnit = 16;

/// Pages of `tokens` tokens. The first one is the sequence's page `first`, the following ones are `stride` pages apart.
struct PagePositions {
  int64_t tokens, first, stride;

  /// Returns the number of keys in these pages before a position of the sequence.
  int64_t keys_before(int64_t position) const {
    const int64_t behind = position - first * tokens;
    if (behind <= 0) return 0;
    if (stride == 1) return behind;
    const int64_t page = behind / tokens;
    return page % stride == 0 ? page / stride * tokens + behind % tokens : (page / stride + 1) * tokens;
  }
  bool has(int64_t position) const {
    const int64_t page = position / tokens - first;
    return page >= 0 && page % stride == 0;
  }
  /// Returns the position in the sequence of key number `key` of these pages.
  int64_t position_of(int64_t key) const { return (first + key / tokens * stride) * tokens + key % tokens; }
};

}  // namespace
}  // namespace colossal::ops
