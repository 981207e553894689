// Attention to keys and values in pages by LibTorch's operators: for accelerators and for dtypes without our kernel,
// and for ranks each of which has pages of a part of every sequence. What our kernel is compared with.
//
//   const PageShare own{.rank = 1, .ranks = 2};                            // every other stretch of a page's tokens
//   write_pages_reference(pages, sequences, k, v, lengths, own);
//   merge(whole, paged_attention_reference(q, pages, sequences, lengths, mask, own));   // and what the other rank has
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/paged_attention.h"
#include "colossal/ops/partial_attention.h"

namespace colossal::ops {

/// Which tokens of its sequences a rank has pages for. Of page i of a table they are those from position
/// (i * ranks + rank) * tokens on, tokens those of a page: `ranks` pages, one of each rank, hold what is one behind
/// another in the sequence.
struct PageShare {
  int64_t rank = 0, ranks = 1;
};

/// Errors ("paged_attention"): tokens [T, heads, D] of another dtype or device than the pages, and tables, that do not
/// fit the pages or one another.
void check_paged_tokens(const Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& tokens,
                        const std::vector<int64_t>& lengths, const PageShare& share = {});

/// As write_pages(), of the step's tokens those that are the rank's; on every device and in every dtype.
void write_pages_reference(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k,
                           const at::Tensor& v, const std::vector<int64_t>& lengths, const PageShare& share = {});

/// As paged_attention(), of the keys that are the rank's, after they were written: out [1, N, T, D] and its log_sums,
/// which merge. Computed in fp64 for fp64, else in fp32.
///
/// Numbers: what is in pages behind a sequence counts for nothing, be it NaN. A query gets what it gets alone up to
///          the last bits: sequences with equally many queries go through the same operators.
/// Memory:  for each group of such sequences their pages once in the dtype that is computed in, as many of each as the
///          longest has, and scores.
/// Errors:  those of check_paged_tokens(), and of paged_attention().
PartialAttention paged_attention_reference(const at::Tensor& q, const Pages& pages,
                                           const std::vector<PagedSequence>& sequences,
                                           const std::vector<int64_t>& lengths, const PagedMask& mask,
                                           const PageShare& share = {});

}  // namespace colossal::ops
