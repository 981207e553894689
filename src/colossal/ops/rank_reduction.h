// How operators that know no collectives sum over ranks.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Element-wise reductions over the ranks that share what an operator works on (the words of a vocabulary, the features
/// of a row), in place. All those ranks hold the same tokens in the same order and so make the same calls. The base
/// class is the identity: one process.
struct RankReduction {
  virtual ~RankReduction() = default;
  virtual void max(at::Tensor&) {}
  virtual void sum(at::Tensor&) {}
};

}  // namespace colossal::ops
