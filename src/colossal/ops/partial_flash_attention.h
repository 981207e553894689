// Attention over a part of the keys by LibTorch's flash attention, whose forward tells the logarithms of its sums and
// whose backward takes those of all keys: what accelerators run where the mask is one that it knows.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention.h"
#include "colossal/ops/partial_attention.h"

namespace colossal::ops {

/// Whether partial_flash_attention() takes them: bf16 or fp16 on an accelerator that runs it
/// (DeviceOperator::FlashAttention); D a multiple of 8, at most 256; no biases, no caps and no documents; keys that are
/// one run, and queries that are one of which each sees a key.
bool takes_partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// partial_attention() of those. Results are rounded to the dtype of q before they are widened.
PartialAttention partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                         const AttentionMask& mask);

/// partial_attention_backward() of those.
AttentionGradients partial_flash_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v, const AttentionMask& mask,
                                                    const PartialAttention& whole);

}  // namespace colossal::ops
