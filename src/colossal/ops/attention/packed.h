// Attention of sequences of unequal lengths by LibTorch's flash attention: for documents within rows, and for a cache
// that holds several sequences.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/attention/attention.h"

namespace colossal::ops {

/// Returns true if packed_attention() accepts the mask's documents or lengths. With documents, their ids must be on the
/// host, there must be as many queries as keys, and each document must be contiguous in its row. Lengths are accepted
/// only without documents and while gradients are not recorded, because LibTorch's derivative ignores lengths.
bool is_packable(const at::Tensor& q, const AttentionMask& mask);

/// Computes flash_attention() for a mask that is_packable().
///
/// Cost: with documents the host reads their ids, O(B S), and copies 4 bytes per document to the device, unless
///       mask.runs holds the result. With lengths it copies 12 bytes per row. Both copies are from pinned memory and
///       the host does not wait. Keys and values of a cache are read in place.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask,
                            double scale);

}  // namespace colossal::ops
