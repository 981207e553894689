// Which parameter goes in which chunk, and how large chunks are. Sizes alone: no tensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace colossal::memory {

/// What is to be packed: one entry a parameter, in order of first use.
struct PackItem {
  int64_t size;  ///< elements
  /// Only parameters of one group share a chunk: those that are summed over the same ranks, all trained or all frozen
  int64_t group;
  int64_t ranks = 1;  ///< that share its chunk out: the same for all of a group
};

struct PackedChunk {
  std::vector<size_t> items;     ///< ascending
  std::vector<int64_t> offsets;  ///< of each, in elements
  int64_t length = 0;            ///< with padding: divides by the ranks that share it
};

struct ChunkPlan {
  std::vector<PackedChunk> chunks;  ///< by first item: about the order of use
  /// Elements of the largest chunk without padding, apart from chunks of one item larger than the target: the size that
  /// was chosen
  int64_t capacity = 0;
  int64_t padding = 0;  ///< elements that hold no parameter, over all chunks
};

/// Packs consecutive items of one group until a chunk would pass its capacity; an item larger than that has a chunk of
/// its own.
///
/// Capacity: searched between `target` / 2 and `target` among the sizes at which chunks would close: the one that
///           leaves the largest chunk least above the mean, so that memory for the largest is not idle with the others.
/// Padding:  to a multiple of 16 elements for each of the group's ranks: every rank's share begins at a cache line. One
///           rank: none.
/// Cost:     items x candidates, at most 64 of those.
ChunkPlan plan_chunks(const std::vector<PackItem>& items, int64_t target);

/// Elements of each segment but the last one, where a rank's part of a chunk, `length` elements, is cut into segments
/// of `capacity` at most (>= 1): as few as can be, of about one length. Segments begin at multiples of a power of two,
/// 4096 where capacity is that large: at pages, and at the blocks of whatever works in blocks (8-bit moments).
int64_t segment_length(int64_t length, int64_t capacity);

}  // namespace colossal::memory
