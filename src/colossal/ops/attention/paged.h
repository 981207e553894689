// Attention to keys and values that are stored in pages. A batch may hold sequences of any lengths, each with a table
// of its pages. It may mix decoding and prompts. The result of a query is bitwise independent of the other sequences in
// the batch and of the other queries of its own sequence. There is no autograd.
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

#include "colossal/ops/attention/partial.h"

namespace colossal::ops {

/// Unit of tokens per page. A page stores the keys of neighbouring tokens side by side; they must fill the vectors of
/// every instruction set.
constexpr int64_t kPageUnit = 16;

struct Pages {
  at::Tensor k;      ///< [pages, N_kv, D, tokens]; undefined = the values are the keys, too
  at::Tensor v;      ///< [pages, N_kv, tokens, D padded to kPageUnit]
  int64_t size = 0;  ///< D
  at::Tensor k_scales{},
      v_scales{};  ///< scales of quantized values: fp32 [pages, N_kv, tokens], one per token and head

  int64_t count() const { return v.size(0); }
  int64_t kv_heads() const { return v.size(1); }
  int64_t tokens() const { return v.size(2); }  ///< tokens per page
  at::ScalarType dtype() const { return v.scalar_type(); }
  bool has_codes() const { return v_scales.defined(); }
  bool are_joint() const { return !k.defined(); }  ///< the values are the keys, too
};

/// Returns true if our kernel supports these tensors: on the CPU, in fp64, fp32 and bf16. For other tensors, the
/// functions of this header call the references in paged_reference.h.
bool has_paged_attention(at::Device device, at::ScalarType dtype);

/// Makes pages of zeros. A page on the CPU takes memory only once tokens are written to it (ops/huge_pages.h). The
/// pages have the dtype of `options`. Pages of int8 or e4m3 hold quantized values with scales
/// (ops/products/row_codes.h), for tokens of any dtype. `joint`: each token is stored once, as key and as value; this
/// halves the memory of attention whose values are its keys (nn/latent_heads.h).
/// Errors ("paged_attention"): the number of tokens per page is not a multiple of kPageUnit.
Pages make_pages(int64_t count, int64_t tokens, int64_t kv_heads, int64_t size, const at::TensorOptions& options,
                 bool joint = false);

/// A sequence whose tokens are stored in these pages, all of them or a part. Page i of the table stores the tokens from
/// (first_page + i page_stride) * Pages::tokens() on. If n ranks share a sequence page by page, rank r has
/// {.first_page = r, .page_stride = n}.
struct PagedSequence {
  std::vector<int32_t> pages;  ///< page indices of its tokens, in order; more than needed are allowed
  int64_t held = 0;            ///< tokens of the whole sequence before this step
  int64_t first_page = 0, page_stride = 1;
};

/// Computation of the scores, as in AttentionMask; always causal.
struct PagedMask {
  double scale = 0;
  int64_t window = 0;
  at::Tensor alibi{};  ///< fp64 [N] or undefined
  double soft_cap = 0;
};

/// Writes the tokens of a step to the pages, after the tokens that each sequence already holds. k and v are [T, N_kv,
/// D]: the first lengths[0] tokens belong to sequence 0, the next ones to sequence 1, and so on. If the pages hold only
/// a part of a sequence, only the tokens of that part are written. Joint pages take k; v is undefined.
/// Errors ("paged_attention"): shapes, dtypes or tables that do not fit together.
void write_pages(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k, const at::Tensor& v,
                 const std::vector<int64_t>& lengths);

/// Computes attention for q [T, N, D], the queries of the tokens that write_pages() wrote before -> [T, N, D].
/// Threads: the work is split by sequence, run of queries and head. If the longest run would keep threads waiting, it
///          is also split by keys, kPagedPart keys per piece. The result has the same bits either way.
/// Cost: the keys and values of a query are read once. kPagedRows / group queries of a sequence share one read.
/// `log_sums`: if given, set to the logarithms of the sums of exponentials of the scores, [T, N] in fp64 for fp64, else
///             in fp32.
/// Errors ("paged_attention"): shapes, dtypes or tables that do not fit together; a sequence of which these pages hold
/// only a part.
at::Tensor paged_attention(const at::Tensor& q, const Pages& pages, const std::vector<PagedSequence>& sequences,
                           const std::vector<int64_t>& lengths, const PagedMask& mask, at::Tensor* log_sums = nullptr);

/// Computes attention over the keys that these pages hold, as ops::partial_attention does. `out` [T, N, D] and log_sums
/// [T, N] are fp64 for fp64, else fp32. They are zero and minus infinity if a query sees no key. merge() combines the
/// results of parts into the result of all pages. Threads, Cost and shape errors are those of paged_attention().
PartialAttention partial_paged_attention(const at::Tensor& q, const Pages& pages,
                                         const std::vector<PagedSequence>& sequences,
                                         const std::vector<int64_t>& lengths, const PagedMask& mask);

}  // namespace colossal::ops
