// Shards made by hand: what a chunk store gives an optimizer.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/memory/shard.h"

namespace colossal::optim {

/// All parameters one behind the other in a shard, of which rank `index` of `count` along "data" has its equal share (the last ones less or
/// nothing). Parameters are left as they are; gradients are zero.
inline memory::Shard make_shard(nn::Parameters& parameters, int64_t index = 0, int64_t count = 1) {
  int64_t total = 0;
  for (const nn::Parameter& p : parameters) total += p.value.numel();
  const int64_t length = (total + count - 1) / count, begin = index * length, end = begin + length;
  const auto options = at::TensorOptions().dtype(parameters.options().dtype);
  memory::Shard shard{at::zeros({length}, options), at::zeros({length}, options), {}, {}};
  int64_t at = 0;
  for (nn::Parameter& p : parameters) {
    const int64_t first = std::max(at, begin), last = std::min(at + p.value.numel(), end);
    if (first < last) {
      shard.values.narrow(0, first - begin, last - first).copy_(p.value.detach().view({-1}).narrow(0, first - at, last - first));
      shard.pieces.push_back({&p, first - begin, {first - at, last - first, true}});
    }
    at += p.value.numel();
  }
  return shard;
}

/// The elements of `flat` that belong to a piece.
inline at::Tensor of_piece(const at::Tensor& flat, const memory::Piece& piece) { return flat.narrow(0, piece.offset, piece.part.size); }

}  // namespace colossal::optim
