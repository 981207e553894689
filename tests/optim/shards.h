// Shards built by hand, as a chunk store passes them to an optimizer.
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "colossal/memory/shard.h"

namespace colossal::optim {

/// Returns the shard of replica `index` of `count`, of all concatenated `parameters`. Shards are equal, except that the
/// last ones are smaller or empty. Parameters are unchanged; gradients are zero.
inline memory::Shard make_shard(const std::vector<nn::Parameter*>& parameters, const nn::Parameters::Options& dtype,
                                int64_t index, int64_t count, bool counts = true,
                                std::shared_ptr<memory::OffloadStore> offload = nullptr) {
  int64_t total = 0;
  for (const nn::Parameter* p : parameters) total += p->value.numel();
  const int64_t length = (total + count - 1) / count, begin = index * length, end = begin + length;
  const auto options = at::TensorOptions().dtype(dtype.dtype);
  const at::Tensor values = at::zeros({length}, options);
  std::vector<memory::Piece> pieces;
  int64_t at = 0;
  for (nn::Parameter* p : parameters) {
    const int64_t first = std::max(at, begin), last = std::min(at + p->value.numel(), end);
    if (first < last) {
      values.narrow(0, first - begin, last - first)
          .copy_(p->value.detach().view({-1}).narrow(0, first - at, last - first));
      pieces.push_back({p, first - begin, {first - at, last - first, counts}});
    }
    at += p->value.numel();
  }
  const memory::Shard shard(memory::Shard::Parts::of(values, std::move(offload)), std::move(pieces));
  shard.lease()->gradients = at::zeros({length}, options);
  return shard;
}

/// All parameters in one shard.
inline memory::Shard make_shard(nn::Parameters& parameters) {
  std::vector<nn::Parameter*> all;
  for (nn::Parameter& p : parameters) all.push_back(&p);
  return make_shard(all, parameters.options(), 0, 1);
}

}  // namespace colossal::optim
