// Places of ranks along the axes of a layout, outermost axis first, as ParallelConfig::axes() orders them.
//
//   const predict::RankPlace sizes = predict::axis_sizes(config.parallel);      // pipeline, data, expert, ...
//   const int64_t stage = predict::place_of_rank(sizes, 5)[predict::kPipelineAxis];
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "colossal/distributed/config.h"

namespace colossal::predict {

inline constexpr size_t kLayoutAxes = 5, kPipelineAxis = 0, kSequenceAxis = 3;
inline constexpr std::array<const char*, kLayoutAxes> kAxisNames{"pipeline", "data", "expert", "sequence", "tensor"};
using RankPlace = std::array<int64_t, kLayoutAxes>;

inline RankPlace axis_sizes(const distributed::ParallelConfig& parallel) {
  return {parallel.pipeline.size, parallel.data, parallel.expert.size, parallel.sequence.size, parallel.tensor.size};
}

inline RankPlace place_of_rank(const RankPlace& sizes, int64_t rank) {
  RankPlace place{};
  for (size_t axis = kLayoutAxes; axis-- > 0; rank /= sizes[axis]) place[axis] = rank % sizes[axis];
  return place;
}

/// Returns how far apart the numbers of two ranks are that are neighbours along the axis.
inline int64_t stride_of_axis(const RankPlace& sizes, size_t axis) {
  int64_t stride = 1;
  for (size_t inner = axis + 1; inner < kLayoutAxes; ++inner) stride *= sizes[inner];
  return stride;
}

}  // namespace colossal::predict
