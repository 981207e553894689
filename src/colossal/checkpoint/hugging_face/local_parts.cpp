#include "colossal/checkpoint/hugging_face/local_parts.h"

#include <ATen/ATen.h>

#include <map>
#include <set>

#include "colossal/base/error.h"
#include "colossal/checkpoint/box.h"
#include "colossal/checkpoint/local_boxes.h"

namespace colossal::checkpoint {
namespace {

/// Makes quantized values that all stand for 0.
ops::GroupCodes empty_codes(const ops::GroupCodes& form, at::IntArrayRef shape) {
  ops::GroupCodes codes{.bits = form.bits, .group = form.group};
  codes.codes = at::full(shape, 1 << (form.bits - 1), at::kByte);
  codes.scales = at::zeros({shape[0], codes.groups()}, at::kFloat);
  if (form.minima.defined()) codes.minima = at::zeros_like(codes.scales);
  return codes;
}

bool same_form(const ops::GroupCodes& a, const ops::GroupCodes& b) {
  return a.bits == b.bits && a.group == b.group && a.minima.defined() == b.minima.defined();
}

/// Converts a box of elements to a box of groups.
Box groups_of(const Box& box, int64_t group) {
  return {{box.start[0], box.start[1] / group}, {box.size[0], (box.size[1] + group - 1) / group}};
}

/// Elements of a part of the folder that this rank holds, in two dimensions.
struct Piece {
  Box part;          ///< the whole part, in the parameter
  Box common, here;  ///< these elements in the parameter, and in the matrix of this rank
};

Box without_entry(Box box) {
  box.start.erase(box.start.begin());
  box.size.erase(box.size.begin());
  return box;
}

/// Returns the pieces of a part in the blocks of this rank. `is_entry`: the part is of one entry of a stack.
std::vector<Piece> pieces_of(const Box& part, const std::vector<tensor::LocalBox>& blocks, bool is_entry) {
  std::vector<Piece> pieces;
  for (const tensor::LocalBox& block : blocks) {
    const std::optional<Box> common = intersect(part, {block.start, block.size});
    if (!common) continue;
    Box here = *common;
    for (size_t d = 0; d < here.start.size(); ++d) here.start[d] += block.local_start[d] - block.start[d];
    if (is_entry)
      pieces.push_back({without_entry(part), without_entry(*common), without_entry(here)});
    else
      pieces.push_back({part, *common, here});
  }
  return pieces;
}

/// Returns true if the tensor of a part is the whole matrix of this rank.
bool is_whole(const ExternalPart& part, const std::vector<tensor::LocalBox>& blocks, at::IntArrayRef shape) {
  if (part.stack != Stack::None || part.first != 0 || part.stride != 1 || part.box.size != part.shape()) return false;
  const std::vector<Piece> pieces = pieces_of(part.box, blocks, false);
  return pieces.size() == 1 && pieces[0].here.size == shape && pieces[0].common.size == part.box.size;
}

/// Reads the quantized values of a part's tensor. Errors: they have another shape than the part.
std::optional<ops::GroupCodes> codes_of_part(const PartSource& source, const WeightSource& files) {
  const ExternalPart& part = *source.part;
  std::optional<ops::GroupCodes> codes = files.codes(source.name);
  if (!codes) return codes;
  codes->check();
  const std::vector<int64_t> shape = part.stack == Stack::Separate ? part.external_shape() : part.shape();
  require(codes->codes.sizes() == shape, "quantization", "quantized values of ", source.name,
          " must have the shape of the model's weight: got ", codes->codes.sizes(), " for ", at::IntArrayRef(shape));
  return codes;
}

}  // namespace

std::optional<ops::GroupCodes> local_codes(const std::vector<const PartSource*>& sources, const WeightSource& files,
                                           const NamedTensor& value, const tensor::MeshCoordinates& coordinates,
                                           int64_t entry) {
  const at::IntArrayRef all = value.value.sizes(), shape = entry < 0 ? all : all.slice(1);
  if (value.part || shape.size() != 2) return {};
  const std::vector<tensor::LocalBox> blocks = local_boxes_of(value, coordinates);
  std::optional<ops::GroupCodes> local;
  std::map<std::string, ops::GroupCodes> read;  // parts may be rows of one tensor
  for (const PartSource* source : sources) {
    const ExternalPart& part = *source->part;
    if (entry >= 0 && part.box.start[0] != entry) continue;
    if (!read.count(source->name)) {
      std::optional<ops::GroupCodes> codes = codes_of_part(*source, files);
      if (!codes || (local && !same_form(*codes, *local))) return {};
      if (is_whole(part, blocks, shape)) {
        files.leave(source->name);
        return codes;
      }
      if (!local) local = empty_codes(*codes, shape);
      read[source->name] = std::move(*codes);
    }
    const ops::GroupCodes& stored = read[source->name];
    const int64_t group = stored.group;
    for (const Piece& piece : pieces_of(part.box, blocks, entry >= 0)) {
      const Box &common = piece.common, &here = piece.here;
      // Blocks must consist of whole groups on both sides. Only the last group of the weight may be shorter, if it is
      // also the last one here.
      const int64_t end = common.start[1] + common.size[1], local_end = here.start[1] + here.size[1];
      const bool short_end = end == piece.part.size[1] && local_end == shape[1];
      if (common.start[1] % group || here.start[1] % group || (end % group && !short_end)) return {};
      const auto copy = [&](const at::Tensor& from, const at::Tensor& to, const Box& in, const Box& out) {
        at_box(to, out).copy_(at_box(entry < 0 ? part.rows_of(from) : from, in, piece.part.start));
      };
      copy(stored.codes, local->codes, common, here);
      const Box from = groups_of(common, group), to = groups_of(here, group);
      copy(stored.scales, local->scales, from, to);
      if (local->minima.defined()) copy(stored.minima, local->minima, from, to);
    }
  }
  for (const auto& [name, codes] : read) files.leave(name);
  return local;
}

std::vector<int64_t> local_entries(const NamedTensor& stack, const tensor::MeshCoordinates& coordinates) {
  std::set<int64_t> entries;
  for (const tensor::LocalBox& block : local_boxes_of(stack, coordinates))
    for (int64_t i = 0; i < block.size[0]; ++i) entries.insert(block.start[0] + i);
  return {entries.begin(), entries.end()};
}

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
