// LibTorch's flash attention, called by name. Accelerators use it if scaled_dot_product_attention would need a mask, or
// would prepare a new plan for every number of keys. Neither the score matrix nor a mask exists. It takes sequences of
// unequal lengths (packed), and a part of the keys (partial).
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/attention.h"
#include "colossal/ops/attention/partial.h"

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

/// Returns true if packed_attention() accepts the mask's documents or lengths. With documents, their ids must be on the
/// host, there must be as many queries as keys, and each document must be contiguous in its row. Lengths are accepted
/// only without documents and while gradients are not recorded, because LibTorch's derivative ignores lengths.
bool is_packable(const at::Tensor& q, const AttentionMask& mask);

/// Computes flash_attention() for a mask that is_packable(), with sequences of unequal lengths: documents within rows,
/// or a cache that holds several sequences.
///
/// Cost: with documents the host reads their ids, O(B S), and copies 4 bytes per document to the device, unless
///       mask.runs holds the result. With lengths it copies 12 bytes per row. Both copies are from pinned memory and
///       the host does not wait. Keys and values of a cache are read in place.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                            double scale);

/// Returns true if partial_flash_attention() accepts these arguments: bf16 or fp16 on an accelerator that runs it
/// (DeviceOperator::FlashAttention); D a multiple of 8, at most 256; no biases, no cap and no documents. The keys must
/// be one run of positions, the queries too, and each query must see a key.
bool takes_partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// Computes partial_attention() for accepted arguments. LibTorch's forward returns the logarithms of the sums of
/// exponentials, and its backward accepts those of all keys. Results are rounded to the dtype of q before they are
/// widened.
PartialAttention partial_flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                         const AttentionMask& mask);

/// Computes partial_attention_backward() for accepted arguments.
AttentionGradients partial_flash_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v, const AttentionMask& mask,
                                                    const PartialAttention& whole);

}  // namespace colossal::ops
