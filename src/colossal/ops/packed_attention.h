// Attention of sequences that lie one behind another, by LibTorch's flash attention: what accelerators run where rows
// hold several documents or a window cuts them. Scores never exist, nor does a mask.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention.h"

namespace colossal::ops {

/// Whether packed_attention() takes them: bf16 or fp16 on an accelerator; D a multiple of 8, at most 256; no biases, no
/// caps, no lengths, no queries of their own; documents only of as many queries as keys, known to the host, each a run
/// of its row.
bool is_packable(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask);

/// attention() of what is_packable(), with the scores' factor `scale`.
///
/// Cost: the host reads the documents, O(B S); where there are any, 4 bytes for each of them go to the device from
///       pinned memory, for which nobody waits. LibTorch's kernel wants a GPU of compute capability 8.0.
/// See:  Dao, arXiv:2307.08691; aten::_flash_attention_forward, which LibTorch differentiates.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                            double scale);

}  // namespace colossal::ops
