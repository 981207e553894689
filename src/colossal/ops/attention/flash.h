// LibTorch's flash attention, called by name. Accelerators use it if scaled_dot_product_attention would need a mask, or
// would prepare a new plan for every number of keys. Neither the score matrix nor a mask exists.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/attention.h"

namespace colossal::ops {

/// Returns true if flash_attention() accepts these arguments: bf16 or fp16 on an accelerator that runs it
/// (DeviceOperator::FlashAttention); D a multiple of 8, at most 256; no biases, no cap and no AttentionMask::queries;
/// documents and lengths only if is_packable().
bool takes_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Computes attention() for arguments that takes_flash_attention() accepts. `scale` is the factor of the scores. Heads
/// are read in place, also from a cache with capacity for more keys.
///
/// Cost: with documents or lengths it is the cost of packed_attention().
/// See:  Dao, arXiv:2307.08691; aten::_flash_attention_forward, which LibTorch differentiates. Its checks are in
///       PyTorch's aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
at::Tensor flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                           double scale);

/// How many positions queries see to the left and right, as the kernel takes it. The kernel counts from the last key,
/// as we do; -1 = no limit. With a causal mask `right` is -1, because any limit turns off the kernel's optimisation for
/// a single query of grouped heads, which fills the GPU.
struct FlashWindow {
  int64_t left, right;
};
FlashWindow flash_window(const AttentionMask& mask);

}  // namespace colossal::ops
