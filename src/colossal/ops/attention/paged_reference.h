// Attention to keys and values in pages by LibTorch's operators. It serves accelerators and dtypes without our kernel,
// and is the reference of our kernel's tests.
//
//   const std::vector<PagedSequence> own{{.pages = table, .held = 4000, .first_page = 1, .page_stride = 2}};
//   write_pages_reference(pages, own, k, v, lengths);
//   merge(whole, paged_attention_reference(q, pages, own, lengths, mask));   // and what the other rank has
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/attention/paged.h"
#include "colossal/ops/attention/partial.h"

namespace colossal::ops {

/// Checks tokens [T, heads, D] and tables. Errors ("paged_attention"): tokens have another dtype or device than the
/// pages; tokens, lengths and tables do not fit together or do not fit the pages.
void check_paged_tokens(const Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& tokens,
                        const std::vector<int64_t>& lengths);
/// Checks keys and values for write_pages().
void check_written_tokens(const Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k,
                          const at::Tensor& v, const std::vector<int64_t>& lengths);

/// Does the same as write_pages(), on every device and in every dtype.
void write_pages_reference(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k,
                           const at::Tensor& v, const std::vector<int64_t>& lengths);

/// Does the same as partial_paged_attention(). It computes in fp64 for fp64, else in fp32.
///
/// Numbers: what pages contain after a sequence's last token has no effect, even if it is NaN. A query's result equals
///          that of the query alone up to the last bits: sequences with equally many queries share operator calls.
/// Memory:  for each such group of sequences: its pages once in the computing dtype, padded to the number of the
///          longest sequence, and the scores.
/// Errors:  the errors of check_paged_tokens() and of paged_attention().
PartialAttention paged_attention_reference(const at::Tensor& q, const Pages& pages,
                                           const std::vector<PagedSequence>& sequences,
                                           const std::vector<int64_t>& lengths, const PagedMask& mask);

}  // namespace colossal::ops
