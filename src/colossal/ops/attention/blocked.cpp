#include "colossal/ops/attention/blocked.h"

#include <ATen/ATen.h>

#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

template <class T, class Pointed>
HeadView<Pointed> view_of(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {pointer<T>(x), x.stride(0), x.stride(1), x.stride(2)};
}

at::Tensor dense_rows(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); }

// Returns a new tensor [B,N,S,D] over [B,S,N,D] storage.
at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

template <class T>
AttentionTask<T> task_of(const BlockedHeads& h, const BlockedResult& result) {
  AttentionTask<T> task{};
  task.batch = h.q.size(0), task.heads = h.q.size(1), task.kv_heads = h.k.size(1);
  task.queries = h.q.size(2), task.keys = h.k.size(2), task.size = h.q.size(3);
  task.from = pointer<int64_t>(h.ranges.from), task.to = pointer<int64_t>(h.ranges.to);
  task.position = pointer<int64_t>(h.ranges.position);
  task.key_position = pointer<int64_t>(h.ranges.key_position);
  task.mask_stride = h.ranges.from.size(0) > 1 ? task.queries : 0;
  task.documents = pointer<int64_t>(h.ranges.documents);
  task.query_documents = pointer<int64_t>(h.ranges.query_documents), task.alibi = pointer<double>(h.alibi);
  task.scale = static_cast<WideOf<T>>(h.scale), task.soft_cap = static_cast<WideOf<T>>(h.soft_cap);
  task.q = view_of<T, const T>(h.q), task.k = view_of<T, const T>(h.k), task.v = view_of<T, const T>(h.v);
  task.out = view_of<T, T>(result.out), task.log_sums = pointer<WideOf<T>>(result.log_sums);
  return task;
}

/// Calls body(T()) for q's element type. On meta it is called only for the scratch memory of the CPU's kernel.
template <class Body>
void compute(const at::Tensor& q, const Body& body) {
  if (!q.is_meta()) return with_element_type(q, body);
  if (has_kernel(q)) with_element_type(at::empty({0}, q.options().device(at::kCPU)), body);
}

template <class T, class Run>
void over_heads(const AttentionTask<T>& task, const Kernels<T>& kernel, int64_t heads, const at::Tensor& like,
                const Run& run) {
  // One cache line of slack per thread, because each thread's scratch must start at its own cache line.
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(WideOf<T>));
  const int64_t scratch = (kernel.attention_scratch(task) + 2 * kLine - 1) / kLine * kLine;
  const auto memory = at::empty({parallel_chunks(heads, 1) * scratch}, like.options().dtype(wide_type(like)));
  if (like.is_meta()) return;
  parallel_chunks_for(0, heads, 1, [&](int64_t chunk, int64_t from, int64_t to) {
    run(task, from, to, pointer<WideOf<T>>(memory) + chunk * scratch);
  });
}

/// Returns the ranges of a mask on meta, where documents are unknown: each is taken to be one run.
KeyRanges shapes_of_ranges(const at::Tensor& q, const AttentionMask& mask) {
  const at::Tensor none = at::empty({0}, at::kLong);
  if (!has_kernel(q)) return {none, none, none, {}, {}, {}};  // only the CPU's kernel reads ranges
  const std::vector<int64_t> sizes{mask.documents.defined() || !mask.lengths.empty() ? q.size(0) : 1, q.size(2)};
  return {at::empty(sizes, at::kLong), at::empty(sizes, at::kLong), at::empty(sizes, at::kLong), {}, {}, {}};
}

at::Tensor slopes_on_host(const at::Tensor& q, const at::Tensor& alibi) {
  if (!alibi.defined()) return alibi;
  if (q.is_meta()) return at::empty(alibi.sizes(), at::kDouble);
  return alibi.detach().to(at::kCPU, at::kDouble).contiguous();
}

BlockedHeads with_dense_rows(BlockedHeads heads) {
  for (at::Tensor* x : {&heads.q, &heads.k, &heads.v}) *x = dense_rows(*x);
  return heads;
}

}  // namespace

BlockedHeads blocked_heads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  return {q,
          k,
          v,
          q.is_meta() ? shapes_of_ranges(q, mask) : key_ranges(q, k, mask),
          slopes_on_host(q, mask.alibi),
          scale_of(q, mask),
          mask.soft_cap};
}

BlockedResult blocked_attention(const BlockedHeads& given) {
  const BlockedHeads heads = with_dense_rows(given);
  const at::Tensor& q = heads.q;
  BlockedResult result{empty_heads(given.q),
                       at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(wide_type(q)))};
  compute(q, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const auto task = task_of<T>(heads, result);
    over_heads(task, kernel, task.batch * task.heads, q, kernel.attention_forward);
  });
  return result;
}

BlockedGradients blocked_attention_backward(const BlockedHeads& given, const BlockedResult& result,
                                            const at::Tensor& gradient) {
  const BlockedHeads heads = with_dense_rows(given);
  const at::Tensor dout = dense_rows(gradient);
  BlockedGradients d{empty_heads(heads.q), empty_heads(heads.k), empty_heads(heads.v)};
  compute(d.q, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    auto task = task_of<T>(heads, result);
    task.dout = view_of<T, const T>(dout);
    task.dq = view_of<T, T>(d.q), task.dk = view_of<T, T>(d.k), task.dv = view_of<T, T>(d.v);
    T any{};
    if (d.k.is_meta()) task.dk.data = &any;  // tells the kernel that it needs the scratch memory of a backward pass
    over_heads(task, kernel, task.batch * task.kv_heads, d.q, kernel.attention_backward);
  });
  return d;
}

}  // namespace colossal::ops
