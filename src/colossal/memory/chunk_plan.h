// Plans which parameter is in which chunk, and how large chunks are. It uses sizes alone, no tensors.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace colossal::memory {

/// A parameter to pack. Entries are in order of first use.
struct PackItem {
  int64_t size;  ///< elements
  /// Only parameters of one group share a chunk: their gradients are summed over the same ranks, and all of them are
  /// trained or all frozen
  int64_t group;
  int64_t ranks = 1;  ///< number of ranks that share its chunk, the same for all items of a group
};

struct PackedChunk {
  std::vector<size_t> items;     ///< indices of the items, ascending
  std::vector<int64_t> offsets;  ///< offset of each item in elements
  int64_t length = 0;            ///< elements with padding, divisible by the number of ranks that share the chunk
};

struct ChunkPlan {
  std::vector<PackedChunk> chunks;  ///< chunks in the order of their first items: about the order of use
  /// Chosen size: elements of the largest chunk, without padding. Chunks of one item larger than the target do not
  /// count
  int64_t capacity = 0;
  int64_t padding = 0;  ///< elements that hold no parameter, over all chunks
};

/// Packs consecutive items of one group until a chunk would exceed its capacity; an item larger than that gets a chunk
/// of its own.
///
/// Capacity: chosen between `target` / 2 and `target` among the sizes at which chunks would close. It is the size for
///           which the largest chunk exceeds the mean the least, so that memory for the largest chunk is not idle with
///           the others.
/// Padding:  to a multiple of 16 elements for each of the group's ranks, so that every rank's part starts at a cache
///           line. A group of one rank has none.
/// Cost:     items x candidates, of which there are at most 64.
ChunkPlan plan_chunks(const std::vector<PackItem>& items, int64_t target);

/// Returns the elements of each segment but the last one, for a rank's part of a chunk of `length` elements. The part
/// is cut into as few segments of about equal length as possible, each of at most `capacity` (>= 1) elements. Segments
/// start at multiples of a power of two, which is 4096 if `capacity` is at least that. They thus start at pages, and at
/// the blocks of code that works in blocks (8-bit moments).
int64_t segment_length(int64_t length, int64_t capacity);

}  // namespace colossal::memory
