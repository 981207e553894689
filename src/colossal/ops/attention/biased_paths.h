// Forward and backward of biased_attention() without autograd: by the CPU's kernels, and by LibTorch's operators a few
// rows at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/biased.h"

namespace colossal::ops {

/// The checked arguments of biased_attention(); rules.scale is the factor itself.
struct BiasedInput {
  at::Tensor q, k, v;
  AttentionBias rules;
};
struct BiasedResult {
  at::Tensor out;       ///< [G,R,N,S,D]
  at::Tensor log_sums;  ///< in the computing type, +infinity for a query that sees no key; the path sets the order
};
struct BiasedGradients {
  at::Tensor q, k, v, bias;  ///< `bias` is undefined if it is not wanted
};

/// Compute with our kernels. Require has_kernel(), at least one query and one key. On meta they only allocate.
BiasedResult kernel_biased_attention(const BiasedInput& in);
BiasedGradients kernel_biased_gradients(const BiasedInput& in, const BiasedResult& result, const at::Tensor& dout,
                                        bool wants_bias);

/// Compute with LibTorch's operators, on any device and on meta. Scores exist for as many rows at a time as have
/// kSliceElements of them, at least for one. `hidden` is true for hidden pairs, or undefined.
BiasedResult sliced_biased_attention(const BiasedInput& in, const at::Tensor& hidden);
BiasedGradients sliced_biased_gradients(const BiasedInput& in, const at::Tensor& hidden, const BiasedResult& result,
                                        const at::Tensor& dout, bool wants_bias);

}  // namespace colossal::ops
