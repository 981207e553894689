#include "colossal/memory/shard.h"

#include <ATen/ATen.h>

#include "colossal/ops/reduce.h"

namespace colossal::memory {

at::Tensor counted_squares(const at::Tensor& flat, const Piece& piece, const tensor::Place& place) {
  const at::Tensor part = flat.narrow(0, piece.offset, piece.part.size);
  const auto blocks = tensor::blocks(piece.parameter->spec, place, piece.part);
  bool all_primary = true, none_primary = true;
  for (const tensor::Block& block : blocks) (block.primary ? none_primary : all_primary) = false;
  if (all_primary && !none_primary) return ops::sum_of_squares(part);  // padding is zero: no need to cut it out
  at::Tensor sum = at::zeros({}, flat.options().dtype(at::kDouble));
  const auto shape = piece.parameter->spec.local_shape(place);
  for (const tensor::Block& block : blocks)
    if (block.primary)
      sum.add_(ops::sum_of_squares(tensor::at_block(part, shape, piece.part, block).contiguous().view({-1})));
  return sum;
}

}  // namespace colossal::memory
