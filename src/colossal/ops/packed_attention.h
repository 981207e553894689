// Attention of sequences of unequal lengths by LibTorch's flash attention: the documents of rows, or what a cache holds
// of several sequences.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention.h"

namespace colossal::ops {

/// Whether packed_attention() takes the mask's documents or lengths. Documents: of as many queries as keys, known to
/// the host, each a run of its row. Lengths: while nothing records gradients, because LibTorch's derivative leaves
/// lengths out of account.
bool is_packable(const at::Tensor& q, const AttentionMask& mask);

/// flash_attention() where the mask is_packable().
///
/// Cost: with documents the host reads them, O(B S), and 4 bytes for each go to the device from pinned memory; with
///       lengths 12 bytes a row. Nobody waits for either. Keys and values of a cache are read where they lie.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                            double scale);

}  // namespace colossal::ops
