#include <ATen/ATen.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/checkpoint/box.h"
#include "colossal/checkpoint/hugging_face/local_parts.h"
#include "colossal/checkpoint/local_boxes.h"

namespace colossal::checkpoint {
namespace {

/// Returns the matrix [out, in] of a part's tensor, of one entry for a stack; none = it is not in NF4, and not to be
/// quantized.
std::optional<ops::Nf4Weight> whole_nf4(const PartSource& source, const WeightSource& files,
                                        std::optional<bool> double_quantized) {
  const ExternalPart& part = *source.part;
  std::optional<ops::Nf4Weight> weight = files.nf4(source.name);
  if (!weight && !double_quantized) return {};
  if (!weight) {
    const at::Tensor matrix =
        part.stack == Stack::Joint ? files.row(source.name, part.first) : files.tensor(source.name);
    weight = ops::quantize_nf4(matrix, {.double_quantized = *double_quantized, .transposed = part.transposed});
  }
  std::vector<int64_t> shape = part.shape();
  if (part.stack != Stack::None) shape.erase(shape.begin());
  require(shape == std::vector<int64_t>{weight->outputs(), weight->inputs()}, "quantization", "nf4 codes of ",
          source.name, " must have the shape of the model's weight: got [", weight->outputs(), ", ", weight->inputs(),
          "] for ", at::IntArrayRef(shape));
  return weight;
}

/// Elements of a part of the folder that this rank holds: where in the tensor's matrix, and the first row here.
struct RowsOfPart {
  ops::MatrixPart stored;
  int64_t here;
};

/// Returns them in the blocks of this rank; none if one does not begin with the first column here.
std::optional<std::vector<RowsOfPart>> rows_of_part(const ExternalPart& part,
                                                    const std::vector<tensor::LocalBox>& blocks) {
  std::vector<RowsOfPart> rows;
  const size_t d = part.stack == Stack::None ? 0 : 1;  // the dimension of rows in boxes
  for (const tensor::LocalBox& block : blocks) {
    const std::optional<Box> common = intersect(part.box, {block.start, block.size});
    if (!common) continue;
    if (common->start[d + 1] - block.start[d + 1] + block.local_start[d + 1] != 0) return {};
    const int64_t row = common->start[d] - part.box.start[d];
    rows.push_back({{.row = d == 0 ? part.first + row * part.stride : row,
                     .rows = common->size[d],
                     .column = common->start[d + 1] - part.box.start[d + 1],
                     .columns = common->size[d + 1],
                     .row_step = d == 0 ? part.stride : 1},
                    common->start[d] - block.start[d] + block.local_start[d]});
  }
  return rows;
}

/// Returns the weights in the order of their rows, with zeros for rows that are padding; none if several have elements
/// of the same rows.
std::optional<std::vector<ops::Nf4Weight>> with_padding(const std::map<int64_t, ops::Nf4Weight>& by_row,
                                                        at::IntArrayRef shape, const ops::Nf4Options& of_zeros) {
  std::vector<ops::Nf4Weight> all;
  const auto add_zeros = [&](int64_t count) {
    const int64_t columns = shape[1];
    const at::Tensor zeros = of_zeros.transposed ? at::zeros({columns, count}) : at::zeros({count, columns});
    if (count > 0) all.push_back(ops::quantize_nf4(zeros, of_zeros));
  };
  int64_t next = 0;
  for (const auto& [row, weight] : by_row) {
    if (row < next) return {};
    add_zeros(row - next);
    all.push_back(weight);
    next = row + weight.outputs();
  }
  add_zeros(shape[0] - next);
  return all;
}

}  // namespace

std::optional<std::vector<ops::Nf4Weight>> local_nf4(const std::vector<const PartSource*>& sources,
                                                     const WeightSource& files, const NamedTensor& value,
                                                     const tensor::MeshCoordinates& coordinates,
                                                     std::optional<bool> double_quantized, int64_t entry) {
  const at::IntArrayRef all = value.value.sizes(), shape = entry < 0 ? all : all.slice(1);
  if (value.part || shape.size() != 2) return {};
  const std::vector<tensor::LocalBox> blocks = local_boxes_of(value, coordinates);
  std::map<int64_t, ops::Nf4Weight> by_row;  // keyed by the first row here
  ops::Nf4Options of_zeros{.double_quantized = double_quantized.value_or(true)};
  std::optional<ops::Nf4Weight> whole;
  std::string open;  // name of the tensor of `whole`; parts may be rows of one tensor
  for (const PartSource* source : sources) {
    const ExternalPart& part = *source->part;
    if (part.leading_ones != 0 || (part.transposed && part.stride != 1)) return {};
    if (entry >= 0 && part.box.start[0] != entry) continue;
    const std::optional<std::vector<RowsOfPart>> rows = rows_of_part(part, blocks);
    if (!rows) return {};
    of_zeros.transposed = part.transposed;
    if (open != source->name) {
      whole = whole_nf4(*source, files, double_quantized);
      files.leave(source->name);
      open = source->name;
    }
    if (!whole) return {};
    for (const auto& [stored, here] : *rows) {
      const bool is_whole = stored.rows == whole->outputs() && stored.columns == whole->inputs();
      if (!by_row.emplace(here, is_whole ? *whole : whole->part(stored)).second) return {};
    }
  }
  return with_padding(by_row, shape, of_zeros);
}

}  // namespace colossal::checkpoint
