#include "colossal/checkpoint/quantized/local_codes.h"

#include <ATen/ATen.h>

#include <map>

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

}  // namespace

std::optional<ops::GroupCodes> local_codes(const std::vector<const PartSource*>& sources, const WeightSource& files,
                                           const NamedTensor& value, const tensor::MeshCoordinates& coordinates) {
  if (value.part || value.value.sizes().size() != 2) return {};
  std::optional<ops::GroupCodes> local;
  std::map<std::string, ops::GroupCodes> read;  // parts may be rows of one tensor
  for (const PartSource* source : sources) {
    const ExternalPart& part = *source->part;
    if (!read.count(source->name)) {
      std::optional<ops::GroupCodes> codes = files.codes(source->name);
      if (!codes || (local && !same_form(*codes, *local))) return {};
      codes->check();
      require(codes->codes.sizes() == part.shape(), "quantization", "quantized values of ", source->name,
              " must have the shape of the model's weight: got ", codes->codes.sizes(), " for ",
              at::IntArrayRef(part.shape()));
      if (!local) local = empty_codes(*codes, value.value.sizes());
      read[source->name] = std::move(*codes);
    }
    const ops::GroupCodes& stored = read[source->name];
    const int64_t group = stored.group, inputs = part.box.size[1];
    for (const tensor::LocalBox& block : local_boxes_of(value, coordinates)) {
      const std::optional<Box> common = intersect(part.box, {block.start, block.size});
      if (!common) continue;
      Box here = *common;
      for (size_t d = 0; d < 2; ++d) here.start[d] += block.local_start[d] - block.start[d];
      // Blocks must consist of whole groups on both sides. Only the last group of the weight may be shorter, if it is
      // also the last one here.
      const int64_t end = common->start[1] + common->size[1], local_end = here.start[1] + here.size[1];
      const bool short_end = end == inputs && local_end == value.value.sizes()[1];
      if (common->start[1] % group || here.start[1] % group || (end % group && !short_end)) return {};
      const auto copy = [&](const at::Tensor& from, const at::Tensor& to, const Box& in, const Box& out) {
        at_box(to, out).copy_(at_box(part.rows_of(from), in, part.box.start));
      };
      copy(stored.codes, local->codes, *common, here);
      const Box from = groups_of(*common, group), to = groups_of(here, group);
      copy(stored.scales, local->scales, from, to);
      if (local->minima.defined()) copy(stored.minima, local->minima, from, to);
    }
  }
  for (const auto& [name, codes] : read) files.leave(name);
  return local;
}

}  // namespace colossal::checkpoint
