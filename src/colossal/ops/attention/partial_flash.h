// Attention over a part of the keys by LibTorch's flash attention. Its forward returns the logarithms of the sums of
// exponentials, and its backward accepts those of all keys. Accelerators use it if it supports the mask.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/partial.h"

namespace colossal::ops {

/// Returns true if partial_flash_attention() accepts these arguments: bf16 or fp16 on an accelerator that runs it
/// (DeviceOperator::FlashAttention); D a multiple of 8, at most 256; no biases, no cap and no documents. The keys must
/// be one run of positions, the queries too, and each query must see a key.
bool takes_partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Computes partial_attention() for accepted arguments. Results are rounded to the dtype of q before they are widened.
PartialAttention partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                         const AttentionMask& mask);

/// Computes partial_attention_backward() for accepted arguments.
AttentionGradients partial_flash_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v, const AttentionMask& mask,
                                                    const PartialAttention& whole);

}  // namespace colossal::ops
