// Attention to keys and values in pages by LibTorch's operators: for accelerators and for dtypes without our kernel,
// and what our kernel is compared with.
//
//   const std::vector<PagedSequence> own{{.pages = table, .held = 4000, .first_page = 1, .page_stride = 2}};
//   write_pages_reference(pages, own, k, v, lengths);
//   merge(whole, paged_attention_reference(q, pages, own, lengths, mask));   // and what the other rank has
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/paged_attention.h"
#include "colossal/ops/partial_attention.h"

namespace colossal::ops {

/// Errors ("paged_attention"): tokens [T, heads, D] of another dtype or device than the pages, and tables, that do not
/// fit the pages or one another.
void check_paged_tokens(const Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& tokens,
                        const std::vector<int64_t>& lengths);

/// As write_pages(), on every device and in every dtype.
void write_pages_reference(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k,
                           const at::Tensor& v, const std::vector<int64_t>& lengths);

/// As partial_paged_attention(). Computed in fp64 for fp64, else in fp32.
///
/// Numbers: what is in pages behind a sequence counts for nothing, be it NaN. A query gets what it gets alone up to
///          the last bits: sequences with equally many queries go through the same operators.
/// Memory:  for each group of such sequences their pages once in the dtype that is computed in, as many of each as the
///          longest has, and scores.
/// Errors:  those of check_paged_tokens(), and of paged_attention().
PartialAttention paged_attention_reference(const at::Tensor& q, const Pages& pages,
                                           const std::vector<PagedSequence>& sequences,
                                           const std::vector<int64_t>& lengths, const PagedMask& mask);

}  // namespace colossal::ops
