// Where the tokens of a sequence lie among the pages that somebody has of it; see PagedSequence in paged_attention.h.
#pragma once
#include <cstdint>

namespace colossal::ops {
namespace {  // a copy for each instruction set that includes it

/// Pages of `tokens` tokens, the first of them the sequence's page `first`, the next ones `stride` further each.
struct PagePositions {
  int64_t tokens, first, stride;

  /// How many keys there are in these pages before a position of the sequence.
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
  /// Position in the sequence of key number `key`.
  int64_t position_of(int64_t key) const { return (first + key / tokens * stride) * tokens + key % tokens; }
};

}  // namespace
}  // namespace colossal::ops
