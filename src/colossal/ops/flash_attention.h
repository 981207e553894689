// LibTorch's flash attention, asked for by name: what accelerators run where scaled_dot_product_attention would need a
// mask, or would plan anew for every number of keys. Scores never exist, nor does a mask.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention.h"

namespace colossal::ops {

/// Whether flash_attention() takes them: bf16 or fp16 on an accelerator that runs it (DeviceOperator::FlashAttention);
/// D a multiple of 8, at most 256; no biases, no caps, no queries of their own; documents and lengths as is_packable()
/// says.
bool takes_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// attention() of what takes_flash_attention(), with the scores' factor `scale`. Heads are read where they lie, in a
/// cache that has room for more keys, too.
///
/// Cost: that of packed_attention(), where there are documents or lengths.
/// See:  Dao, arXiv:2307.08691; aten::_flash_attention_forward, which LibTorch differentiates. Its checks are in
///       PyTorch's aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp.
at::Tensor flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                           double scale);

/// How far queries see to either side as the kernel takes it: it counts from the last key, as we do, and -1 is any.
/// Nothing is said about what comes after a query where the mask is causal: that turns off what the kernel does to fill
/// a GPU with a single query of grouped heads.
struct FlashWindow {
  int64_t left, right;
};
FlashWindow flash_window(const AttentionMask& mask);

}  // namespace colossal::ops
