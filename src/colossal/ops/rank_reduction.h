// Interface by which operators without collectives reduce over ranks.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Element-wise reductions, in place, over the ranks that share an operator's data (the words of a vocabulary, the
/// features of a row). All these ranks must hold the same tokens in the same order, so that they make the same calls.
/// The base class is the identity, for one process.
struct RankReduction {
  virtual ~RankReduction() = default;
  virtual void max(at::Tensor&) {}
  virtual void sum(at::Tensor&) {}
};

}  // namespace colossal::ops
