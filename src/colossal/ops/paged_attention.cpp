#include "colossal/ops/paged_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/lazy_zeros.h"
#include "colossal/ops/paged_attention_reference.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

template <class T>
void write_head(const Pages& pages, const PagedSequence& s, const T* k, const T* v, int64_t token_stride, int64_t count,
                int64_t head) {
  const int64_t tokens = pages.tokens(), size = pages.size, padded = pages.v.size(3);
  for (int64_t t = 0; t < count; ++t, k += token_stride, v += token_stride) {
    const int64_t position = s.held + t, page = s.pages[position / tokens] * pages.kv_heads() + head;
    T* keys = pointer<T>(pages.k) + page * size * tokens + position % tokens;
    for (int64_t d = 0; d < size; ++d) keys[d * tokens] = k[d];
    std::copy_n(v, size, pointer<T>(pages.v) + (page * tokens + position % tokens) * padded);
  }
}

/// Runs of queries that a kernel takes at a time.
std::vector<PagedQueries> runs_of(const std::vector<PagedSequence>& sequences, const std::vector<int64_t>& lengths,
                                  int64_t group) {
  const int64_t most = std::max<int64_t>(1, kPagedRows / group);
  std::vector<PagedQueries> runs;
  int64_t token = 0;
  for (size_t i = 0; i < sequences.size(); token += lengths[i++])
    for (int64_t first = 0; first < lengths[i]; first += most)
      runs.push_back(
          {sequences[i].pages.data(), token + first, std::min(most, lengths[i] - first), sequences[i].held + first});
  return runs;
}

double pairs_of(const std::vector<PagedSequence>& sequences, const std::vector<int64_t>& lengths, int64_t reach) {
  double pairs = 0;
  for (size_t i = 0; i < sequences.size(); ++i)
    for (int64_t t = 0; t < lengths[i]; ++t) pairs += static_cast<double>(std::min(reach, sequences[i].held + t + 1));
  return pairs;
}

}  // namespace

bool has_paged_attention(at::Device device, at::ScalarType dtype) {
  return device.is_cpu() && (dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16);
}

Pages make_pages(int64_t count, int64_t tokens, int64_t kv_heads, int64_t size, const at::TensorOptions& options) {
  require(tokens > 0 && tokens % kPageUnit == 0, "paged_attention", "pages must be of a multiple of ", kPageUnit,
          " tokens: got ", tokens);
  const int64_t padded = (size + kPageUnit - 1) / kPageUnit * kPageUnit;
  // Zeros, not anything: a score that nobody looks at is computed all the same.
  return {lazy_zeros({count, kv_heads, size, tokens}, options), lazy_zeros({count, kv_heads, tokens, padded}, options),
          size};
}

void write_pages(Pages& pages, const std::vector<PagedSequence>& sequences, const at::Tensor& k, const at::Tensor& v,
                 const std::vector<int64_t>& lengths) {
  if (!has_paged_attention(pages.k.device(), pages.k.scalar_type()))
    return write_pages_reference(pages, sequences, k, v, lengths);
  check_paged_tokens(pages, sequences, k, lengths);
  check_paged_tokens(pages, sequences, v, lengths);
  const int64_t heads = pages.kv_heads();
  require(k.size(1) == heads && v.size(1) == heads, "paged_attention", "keys and values must have the pages' ", heads,
          " heads: got ", k.size(1), " and ", v.size(1));
  const at::Tensor keys = k.contiguous(), values = v.contiguous();
  constexpr int64_t kGrain = 8;  // heads of a token are a few hundred numbers
  with_element_type(keys, [&](auto element) {
    using T = decltype(element);
    parallel_for(0, heads, k.size(0) > kGrain ? 1 : heads, [&](int64_t from, int64_t to) {
      for (int64_t head = from; head < to; ++head) {
        int64_t first = head * pages.size;
        for (size_t i = 0; i < sequences.size(); first += lengths[i++] * heads * pages.size)
          write_head<T>(pages, sequences[i], pointer<T>(keys) + first, pointer<T>(values) + first, heads * pages.size,
                        lengths[i], head);
      }
    });
  });
}

at::Tensor paged_attention(const at::Tensor& q, const Pages& pages, const std::vector<PagedSequence>& sequences,
                           const std::vector<int64_t>& lengths, const PagedMask& mask) {
  if (!has_paged_attention(pages.k.device(), pages.k.scalar_type())) {
    const at::Tensor out = paged_attention_reference(q, pages, sequences, lengths, mask).out[0].transpose(0, 1);
    return out.to(q.scalar_type()).contiguous();
  }
  check_paged_tokens(pages, sequences, q, lengths);
  const int64_t heads = q.size(1), kv_heads = pages.kv_heads();
  require(heads % kv_heads == 0, "paged_attention", "heads must be a multiple of the pages' ", kv_heads, ": got ",
          heads);
  const at::Tensor queries = q.stride(2) == 1 ? q : q.contiguous();
  const at::Tensor alibi = mask.alibi.defined() ? mask.alibi.to(at::kDouble).contiguous() : mask.alibi;
  require(!alibi.defined() || alibi.numel() == heads, "paged_attention", "there must be a slope a head: got ",
          alibi.defined() ? alibi.numel() : 0, " of ", heads);
  const int64_t reach = mask.window > 0 ? mask.window : std::numeric_limits<int64_t>::max() / 2;
  const at::Tensor out = at::empty({q.size(0), heads, pages.size}, q.options().requires_grad(false));
  const std::vector<PagedQueries> runs = runs_of(sequences, lengths, heads / kv_heads);
  const auto items = static_cast<int64_t>(runs.size()) * kv_heads;
  with_element_type(q, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    const Kernels<T>& kernel = kernels<T>();
    const PagedTask<T> task{
        heads,
        kv_heads,
        pages.size,
        pages.v.size(3),
        pages.tokens(),
        pointer<T>(pages.k),
        pointer<T>(pages.v),
        pointer<T>(queries),
        queries.stride(0),
        queries.stride(1),
        pointer<T>(out),
        pointer<double>(alibi),
        static_cast<W>(mask.scale == 0 ? 1 / std::sqrt(static_cast<double>(pages.size)) : mask.scale),
        static_cast<W>(mask.soft_cap),
        reach};
    const int64_t scratch = kernel.paged_scratch(task);
    const at::Tensor memory = at::empty({parallel_chunks(items, 1) * scratch}, q.options().dtype(wide_type(q)));
    parallel_chunks_for(0, items, 1, [&](int64_t chunk, int64_t from, int64_t to) {
      // neighbours share a run of queries
      for (int64_t item = from; item < to; ++item)
        kernel.paged_attention(task, runs[item / kv_heads], item % kv_heads, pointer<W>(memory) + chunk * scratch);
    });
  });
  if (tensor::are_flops_counted())
    tensor::announce_flops(4 * static_cast<double>(heads * pages.size) * pairs_of(sequences, lengths, reach));
  return out;
}

}  // namespace colossal::ops
