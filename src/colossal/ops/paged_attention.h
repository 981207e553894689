// Attention to keys and values that lie in pages: of sequences of any lengths in one batch, each with a table of its
// pages. What a query gets does not depend on the sequences beside it, nor on the queries of its own that are computed
// with it, bit for bit. For decoding and for prompts, in any mixture. No autograd.
//
//   ops::Pages pages = ops::make_pages(64, 16, 8, 128, q.options());                 // 64 pages of 16 tokens
//   ops::write_pages(pages, {{.pages = {3, 17}, .held = 20}}, k, v, {5});            // tokens 20 to 24
//   const at::Tensor out = ops::paged_attention(q, pages, {{.pages = {3, 17}, .held = 20}}, {5}, {.window = 4096});
//
// See: Kwon et al. 2023, arXiv:2309.06180.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/ops/partial_attention.h"

namespace colossal::ops {

/// Positions whose keys a page has side by side must fill vectors of every instruction set.
constexpr int64_t kPageUnit = 16;

struct Pages {
  at::Tensor k;      ///< [pages, N_kv, D, tokens]
  at::Tensor v;      ///< [pages, N_kv, tokens, D padded to kPageUnit]
  int64_t size = 0;  ///< D
  at::Tensor k_scales{},
      v_scales{};  ///< of codes: fp32 [pages, N_kv, tokens], by which those of a token are multiplied

  int64_t count() const { return k.size(0); }
  int64_t kv_heads() const { return k.size(1); }
  int64_t tokens() const { return k.size(3); }  ///< of a page
  bool has_codes() const { return k_scales.defined(); }
};

/// Returns true if our kernel runs: on the CPU, in fp64, fp32 and bf16. Otherwise the functions here call those of
/// paged_attention_reference.h.
bool has_paged_attention(at::Device device, at::ScalarType dtype);

/// Makes pages of zeros. On the CPU they take memory only once tokens are written (ops/lazy_zeros.h).
/// The pages have the dtype of `options`. Pages of int8 or e4m3 have quantized values with scales (row_codes.h), for
/// tokens of any dtype.
/// Errors ("paged_attention"): pages whose tokens are not a multiple of kPageUnit.
Pages make_pages(int64_t count, int64_t tokens, int64_t kv_heads, int64_t size, const at::TensorOptions& options);

/// A sequence of which these pages may hold a part: page i of the table has tokens (first_page + i page_stride) *
/// Pages::tokens() and on. Rank r of n that share a sequence by blocks has {.first_page = r, .page_stride = n}.
struct PagedSequence {
  std::vector<int32_t> pages;  ///< those of its tokens, in their order; there may be more
  int64_t held = 0;            ///< tokens of the whole sequence before those of the step
  int64_t first_page = 0, page_stride = 1;
};

/// How scores are made; as AttentionMask, always causal.
struct PagedMask {
  double scale = 0;
  int64_t window = 0;
  at::Tensor alibi{};  ///< fp64 [N] or undefined
  double soft_cap = 0;
};

/// Puts the step's tokens behind those held: k and v [T, N_kv, D], sequence i lengths[i] of them, one behind another;
/// of a sequence whose pages are a part of it, those tokens that lie there.
/// Errors ("paged_attention"): shapes, dtypes and tables that do not fit together.
void write_pages(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k, const at::Tensor& v,
                 const std::vector<int64_t>& lengths);

/// q [T, N, D], the queries of these tokens, after write_pages() -> [T, N, D].
/// Threads: sequences, runs of queries and heads are dealt out; where the longest would keep threads waiting, keys too,
///          kPagedPart of them at a time. The bits of a result are the same.
/// Cost: of a query its keys and values are read once; queries of a sequence share a reading by kPagedRows / group.
/// Errors ("paged_attention"): shapes, dtypes and tables that do not fit together; sequences of which a part is there.
at::Tensor paged_attention(const at::Tensor& q, const Pages& pages, const std::vector<PagedSequence>& sequences,
                           const std::vector<int64_t>& lengths, const PagedMask& mask);

/// What queries have of the keys that these pages hold, as ops::partial_attention tells it: out [T, N, D] and log_sums
/// [T, N] in fp64 for fp64, else in fp32; zeros and minus infinity where a query sees none. merge() makes the result of
/// all pages of the results of parts. The rest as paged_attention.
PartialAttention partial_paged_attention(const at::Tensor& q, const Pages& pages,
                                         const std::vector<PagedSequence>& sequences,
                                         const std::vector<int64_t>& lengths, const PagedMask& mask);

}  // namespace colossal::ops
