#include "colossal/checkpoint/hugging_face/local_rows.h"

#include <ATen/ATen.h>

#include <map>

#include "colossal/checkpoint/box.h"
#include "colossal/checkpoint/local_boxes.h"

namespace colossal::checkpoint {

at::Tensor read_part(const PartSource& source, const WeightSource& files) {
  const ExternalPart& part = *source.part;
  if (part.stack == Stack::Joint) return files.row(source.name, part.first).unsqueeze(0);
  return part.rows_of(part.to_ours(files.tensor(source.name)));
}

std::optional<std::vector<at::Tensor>> local_rows(const std::vector<const PartSource*>& sources,
                                                  const WeightSource& files, const NamedTensor& value,
                                                  const tensor::MeshCoordinates& coordinates, int64_t entry) {
  const at::IntArrayRef all = value.value.sizes(), shape = entry < 0 ? all : all.slice(1);
  if (value.part || shape.size() != 2) return {};
  const size_t rows_at = entry < 0 ? 0 : 1;  // the dimension of rows in boxes
  const std::vector<tensor::LocalBox> blocks = local_boxes_of(value, coordinates);
  std::map<int64_t, at::Tensor> rows;  // by the first of them
  for (const PartSource* source : sources) {
    const ExternalPart& part = *source->part;
    if (part.transposed) return {};
    if (entry >= 0 && part.box.start[0] != entry) continue;
    std::optional<at::Tensor> stored;
    for (const tensor::LocalBox& block : blocks) {
      const std::optional<Box> common = intersect(part.box, {block.start, block.size});
      if (!common) continue;
      if (common->size[rows_at + 1] != shape[1]) return {};
      if (!stored) stored = read_part(*source, files);
      const at::Tensor of_block = at_box(*stored, *common, part.box.start);
      const int64_t first = common->start[rows_at] - block.start[rows_at] + block.local_start[rows_at];
      rows[first] = entry < 0 ? of_block : of_block.squeeze(0);
    }
  }
  std::vector<at::Tensor> found;
  int64_t next = 0;
  for (auto& [first, of_part] : rows) {
    if (first != next) return {};
    next += of_part.size(0);
    found.push_back(std::move(of_part));
  }
  if (next != shape[0]) return {};
  return found;
}

}  // namespace colossal::checkpoint
