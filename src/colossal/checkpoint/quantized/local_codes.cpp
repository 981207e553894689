#include "colossal/checkpoint/quantized/local_codes.h"

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
  const PartSource* source;
  Box part;          ///< the whole part, in the parameter
  Box common, here;  ///< these elements in the parameter, and in the matrix of this rank
};

Box without_entry(Box box) {
  box.start.erase(box.start.begin());
  box.size.erase(box.size.begin());
  return box;
}

std::vector<Piece> pieces_of(const std::vector<const PartSource*>& sources, const NamedTensor& value,
                             const tensor::MeshCoordinates& coordinates, int64_t entry) {
  const std::vector<tensor::LocalBox> blocks = local_boxes_of(value, coordinates);
  std::vector<Piece> pieces;
  for (const PartSource* source : sources) {
    const Box& part = source->part->box;
    if (entry >= 0 && part.start[0] != entry) continue;
    for (const tensor::LocalBox& block : blocks) {
      const std::optional<Box> common = intersect(part, {block.start, block.size});
      if (!common) continue;
      Box here = *common;
      for (size_t d = 0; d < here.start.size(); ++d) here.start[d] += block.local_start[d] - block.start[d];
      const bool is_entry = entry >= 0;
      pieces.push_back({source, is_entry ? without_entry(part) : part, is_entry ? without_entry(*common) : *common,
                        is_entry ? without_entry(here) : here});
    }
  }
  return pieces;
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
  std::optional<ops::GroupCodes> local;
  std::map<std::string, ops::GroupCodes> read;  // parts may be rows of one tensor
  for (const Piece& piece : pieces_of(sources, value, coordinates, entry)) {
    const std::string& name = piece.source->name;
    if (!read.count(name)) {
      std::optional<ops::GroupCodes> codes = codes_of_part(*piece.source, files);
      if (!codes || (local && !same_form(*codes, *local))) return {};
      if (!local) local = empty_codes(*codes, shape);
      read[name] = std::move(*codes);
    }
    const ops::GroupCodes& stored = read[name];
    const Box &common = piece.common, &here = piece.here;
    const int64_t group = stored.group, inputs = piece.part.size[1];
    // Blocks must consist of whole groups on both sides. Only the last group of the weight may be shorter, if it is
    // also the last one here.
    const int64_t end = common.start[1] + common.size[1], local_end = here.start[1] + here.size[1];
    const bool short_end = end == inputs && local_end == shape[1];
    if (common.start[1] % group || here.start[1] % group || (end % group && !short_end)) return {};
    const auto copy = [&](const at::Tensor& from, const at::Tensor& to, const Box& in, const Box& out) {
      const at::Tensor rows = entry < 0 ? piece.source->part->rows_of(from) : from;
      at_box(to, out).copy_(at_box(rows, in, piece.part.start));
    };
    copy(stored.codes, local->codes, common, here);
    const Box from = groups_of(common, group), to = groups_of(here, group);
    copy(stored.scales, local->scales, from, to);
    if (local->minima.defined()) copy(stored.minima, local->minima, from, to);
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

}  // namespace colossal::checkpoint
