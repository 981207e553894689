#include "colossal/tensor/shard_spec.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "colossal/base/error.h"

namespace colossal::tensor {
namespace {

struct Part {  // the part of one segment that one rank holds
  int64_t start, size, room;
  bool primary;
};

Part part_of(const Segment& segment, int64_t index, int64_t parts) {
  const int64_t granules = segment.size / segment.granule;
  if (segment.replicate && granules < parts && parts % granules == 0) {
    const int64_t copies = parts / granules;
    return {index / copies * segment.granule, segment.granule, segment.granule, index % copies == 0};
  }
  const int64_t room = (granules + parts - 1) / parts;
  const int64_t start = std::min(index * room, granules), end = std::min(start + room, granules);
  return {start * segment.granule, (end - start) * segment.granule, room * segment.granule, true};
}

int64_t room_of(const DimSplit& split, const MeshCoordinates& coordinates) {
  int64_t room = 0;
  for (const Segment& segment : split.segments)
    room += part_of(segment, coordinates.index(split.axes), coordinates.size(split.axes)).room;
  return room;
}

int64_t piece_of(const DimSplit& split, const MeshCoordinates& coordinates) {
  const int64_t pieces = coordinates.size(split.shards);
  return (room_of(split, coordinates) + pieces - 1) / pieces;
}

struct Run {  // the extent of one box in one dimension
  int64_t start, local_start, size;
  bool primary;
};

std::vector<Run> runs_of(const DimSplit& split, const MeshCoordinates& coordinates) {
  std::vector<Run> runs;
  int64_t start = 0, local = 0;
  const int64_t parts = coordinates.size(split.axes), index = coordinates.index(split.axes);
  // This rank's piece of the part is the range of rows [first, first + piece).
  const int64_t piece = piece_of(split, coordinates), first = coordinates.index(split.shards) * piece;
  for (const Segment& segment : split.segments) {
    const Part part = part_of(segment, index, parts);
    const int64_t from = std::max(local, first), to = std::min(local + part.size, first + piece);
    if (from < to) runs.push_back({start + part.start + from - local, from - first, to - from, part.primary});
    start += segment.size;
    local += part.room;
  }
  return runs;
}

bool names(const std::vector<std::string>& axes, const std::string& axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// A replica is primary on the ranks whose index is 0 along every axis that does not split the tensor. With stages, it
/// is primary on the first stage that uses it.
bool holds_first_copy(const ShardSpec& spec, const MeshCoordinates& coordinates) {
  for (const MeshCoordinates::Axis& axis : coordinates.axes()) {
    if (axis.name == "pipeline" && !spec.stages.empty()) {
      if (axis.index != spec.stages.front()) return false;
      continue;
    }
    if (!spec.splits_over(axis.name) && axis.index != 0) return false;
  }
  return true;
}

}  // namespace

int64_t total_size(const std::vector<Segment>& segments) {
  int64_t total = 0;
  for (const Segment& segment : segments) total += segment.size;
  return total;
}

ShardSpec ShardSpec::whole(std::vector<int64_t> shape) {
  ShardSpec spec;
  for (int64_t size : shape) spec.splits.push_back({{}, {{size}}});
  spec.shape = std::move(shape);
  return spec;
}

ShardSpec ShardSpec::split(std::vector<int64_t> shape, int64_t dim, std::vector<std::string> axes,
                           std::vector<Segment> segments) {
  ShardSpec spec = whole(std::move(shape));
  DimSplit& split = spec.splits.at(dim);
  split.axes = std::move(axes);
  if (!segments.empty()) split.segments = std::move(segments);
  for (const Segment& s : split.segments)
    require(s.granule > 0 && s.size % s.granule == 0, "shard_spec", "a segment must hold whole granules: got size ",
            s.size, ", granule ", s.granule);
  const int64_t total = total_size(split.segments);
  require(total == spec.shape.at(dim), "shard_spec", "segments must add up to the dimension: got ", total, " of ",
          spec.shape.at(dim));
  return spec;
}

int64_t ShardSpec::room(int64_t dim, const MeshCoordinates& coordinates) const {
  return room_of(splits.at(dim), coordinates);
}

std::vector<int64_t> ShardSpec::local_shape(const MeshCoordinates& coordinates) const {
  std::vector<int64_t> sizes;
  for (const DimSplit& split : splits) sizes.push_back(piece_of(split, coordinates));
  return sizes;
}

std::vector<LocalBox> ShardSpec::local_boxes(const MeshCoordinates& coordinates) const {
  std::vector<LocalBox> boxes{{{}, {}, {}, holds_first_copy(*this, coordinates)}};
  for (const DimSplit& split : splits) {  // builds the product of the runs of all dimensions
    std::vector<LocalBox> longer;
    for (const LocalBox& box : boxes) {
      for (const Run& run : runs_of(split, coordinates)) {
        longer.push_back(box);
        longer.back().start.push_back(run.start);
        longer.back().local_start.push_back(run.local_start);
        longer.back().size.push_back(run.size);
        longer.back().primary = box.primary && run.primary;
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

bool ShardSpec::splits_over(const std::string& axis) const {
  return std::any_of(splits.begin(), splits.end(),
                     [&](const DimSplit& s) { return names(s.axes, axis) || names(s.shards, axis); });
}

int64_t ShardSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<std::string> replicas(const ShardSpec& spec, const MeshCoordinates& coordinates) {
  std::vector<std::string> axes = coordinates.batch_axes();
  std::erase_if(axes, [&](const std::string& axis) { return spec.splits_over(axis); });
  return axes;
}

}  // namespace colossal::tensor
