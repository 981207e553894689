// The tokens that a rank has of each row, and what ranks that have other tokens of the same rows send each other.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/tokens.h"

namespace colossal::nn {

/// The tokens of hidden states between blocks. The base class is that of one process, which has all tokens.
class TokenRuns {
 public:
  virtual ~TokenRuns() = default;
  /// Returns the number of ranks that have other tokens of the same rows, this one included, and its index among them.
  virtual int64_t ranks() const { return 1; }
  virtual int64_t rank() const { return 0; }
  /// Returns the rows and tokens of the batch of `step` that this rank has.
  virtual Tokens here(const ForwardContext& step) const;
  /// Returns the sum of `partial` over the ranks that have other tokens of the same rows. Each of them passes what it
  /// computed from its own tokens, and uses the result in its own way.
  /// Communication: one all_reduce of `partial` in forward and one in backward, if ranks split the tokens.
  virtual at::Tensor sum(const at::Tensor& partial) const { return partial; }
  /// Returns the tensors of all ranks(), which have the same sizes, concatenated along dimension 1.
  /// Communication: one all_gather of them, and a reduce_scatter in backward, if ranks split the tokens.
  virtual at::Tensor gathered(const at::Tensor& own) const { return own; }

  /// Returns which tokens of a row each rank has, if this rank has `own`.
  SequenceCut cut(const ForwardContext& step, int64_t own) const;
};

}  // namespace colossal::nn
