// Which activations a training step computes again: a tree of segments of blocks.
//
//   // Blocks 0 to 3 keep only the input of block 0. Their recomputation keeps blocks 2 and 3, and computes 0 and 1
//   // once more. Block 4 keeps everything.
//   const Segments segments{{.first = 0, .last = 4, .parts = {{.first = 0, .last = 2}}}};
#pragma once
#include <cstdint>
#include <vector>

namespace colossal {

struct Segment;
/// Segments that do not overlap, in the order of their blocks. Blocks between them keep their activations.
using Segments = std::vector<Segment>;

/// Consecutive blocks whose forward pass keeps only the input of the first one. Backward computes them again.
struct Segment {
  int64_t first = 0, last = 0;  ///< blocks [first, last)
  bool is_on_host = false;      ///< true = the input is in host memory until backward needs it, where tiers exist
  Segments parts{};             ///< segments of the recomputation, within [first, last); empty = it keeps all blocks
  bool operator==(const Segment&) const = default;
};

}  // namespace colossal
