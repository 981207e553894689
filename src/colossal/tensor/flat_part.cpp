#include "colossal/tensor/flat_part.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

namespace colossal::tensor {
namespace {

struct Box {
  std::vector<int64_t> start, size;
};

std::vector<int64_t> strides_of(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

/// Appends boxes that cover elements [first, last) of dimensions `d` and later; all boxes start with the indices
/// `outer`. There are up to three kinds: the tail of a partial first row of dimension d, whole rows, the head of a
/// partial last row.
void add_boxes(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides, size_t d,
               std::vector<int64_t> outer, int64_t first, int64_t last, std::vector<Box>& boxes) {
  if (first >= last) return;
  if (d == shape.size()) return boxes.push_back({outer, std::vector<int64_t>(d, 1)});
  const int64_t row = strides[d], head = std::min((first + row - 1) / row * row, last),
                tail = std::max(last / row * row, head);
  const auto inside = [&](int64_t from, int64_t to) {
    if (from >= to) return;
    std::vector<int64_t> indices = outer;
    indices.push_back(from / row);
    add_boxes(shape, strides, d + 1, indices, from % row, from % row + to - from, boxes);
  };
  inside(first, head);
  if (head < tail) {
    Box whole{outer, std::vector<int64_t>(d, 1)};
    whole.start.push_back(head / row);
    whole.size.push_back((tail - head) / row);
    for (size_t inner = d + 1; inner < shape.size(); ++inner) {
      whole.start.push_back(0);
      whole.size.push_back(shape[inner]);
    }
    boxes.push_back(std::move(whole));
  }
  inside(tail, last);
}

std::optional<LocalBox> cut(const LocalBox& block, const Box& box) {
  LocalBox result{{}, {}, {}, block.primary};
  for (size_t d = 0; d < box.start.size(); ++d) {
    const int64_t start = std::max(block.local_start[d], box.start[d]);
    const int64_t end = std::min(block.local_start[d] + block.size[d], box.start[d] + box.size[d]);
    if (start >= end) return {};
    result.local_start.push_back(start);
    result.start.push_back(start - block.local_start[d] + block.start[d]);
    result.size.push_back(end - start);
  }
  return result;
}

MeshCoordinates first_replica(const ShardSpec& spec, const MeshCoordinates& coordinates) {
  std::vector<MeshCoordinates::Axis> axes = coordinates.axes();
  for (auto& axis : axes)
    if (axis.batch_split != BatchSplit::Nothing && !spec.splits_over(axis.name)) axis.index = 0;
  return MeshCoordinates(axes);
}

}  // namespace

std::vector<LocalBox> local_boxes(const ShardSpec& spec, const MeshCoordinates& coordinates, const FlatPart& part) {
  const std::vector<int64_t> shape = spec.local_shape(coordinates);
  std::vector<Box> boxes;
  add_boxes(shape, strides_of(shape), 0, {}, part.first, part.first + part.size, boxes);
  std::vector<LocalBox> result;
  for (const LocalBox& block : spec.local_boxes(first_replica(spec, coordinates)))
    for (const Box& box : boxes)
      if (auto common = cut(block, box)) {
        common->primary = common->primary && part.counts;
        result.push_back(std::move(*common));
      }
  return result;
}

at::Tensor at_local_box(const at::Tensor& flat, const std::vector<int64_t>& local_shape, const FlatPart& part,
                        const LocalBox& block) {
  const std::vector<int64_t> strides = strides_of(local_shape);
  int64_t offset = flat.storage_offset() - part.first;
  for (size_t d = 0; d < strides.size(); ++d) offset += block.local_start[d] * strides[d];
  return flat.as_strided(block.size, strides, offset);
}

}  // namespace colossal::tensor
