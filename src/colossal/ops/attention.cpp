#include "colossal/ops/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  require(q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
          "attention", "q must be [B,N,S,D], k and v [B,Nkv,T,D]: got ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  require(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention", "heads must divide by key-value heads: got ",
          q.size(1), " and ", k.size(1));
  require(!mask.causal || k.size(2) >= q.size(2), "attention",
          "causal queries are the last of the keys' positions: got ", q.size(2), " queries, ", k.size(2), " keys");
  if (mask.documents.defined())
    require(mask.documents.dim() == 2 && mask.documents.size(0) == k.size(0) && mask.documents.size(1) == k.size(2) &&
                mask.documents.size(1) >= q.size(2) && mask.documents.scalar_type() == at::kLong,
            "attention", "document ids must be int64 [B,T] with T >= S: got ", mask.documents.sizes(), " for keys ",
            k.sizes());
}

double scale_of(const at::Tensor& q, const AttentionMask& mask) {
  return mask.scale != 0 ? mask.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

// True where a query may look: [S,T] or [B,1,S,T].
at::Tensor visible(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t queries = q.size(2), keys = k.size(2);
  auto allowed = at::ones({queries, keys}, q.options().dtype(at::kBool).requires_grad(false));
  if (mask.causal) allowed = allowed.tril(keys - queries);
  if (!mask.documents.defined()) return allowed;
  const auto of_query = mask.documents.slice(1, keys - queries);
  return (of_query.unsqueeze(2) == mask.documents.unsqueeze(1)).unsqueeze(1).logical_and(allowed);
}

}  // namespace

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionMask& mask) {
  check(q, k, v, mask);
  const int64_t group = q.size(1) / k.size(1);
  const auto type = wide_type(q);
  const auto keys = k.repeat_interleave(group, 1).to(type), values = v.repeat_interleave(group, 1).to(type);
  const auto scores = at::matmul(q.to(type), keys.transpose(2, 3)) * scale_of(q, mask);
  const auto hidden = visible(q, k, mask).logical_not();
  const auto weights = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::matmul(weights, values).to(q.scalar_type());
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Below this many queries packing the keys costs more than it saves.
constexpr int64_t kFewestQueries = 8;

template <class T, class Pointed>
HeadView<Pointed> view_of(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {pointer<T>(x), x.stride(0), x.stride(1), x.stride(2)};
}

at::Tensor dense_rows(const at::Tensor& x) { return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous(); }

// A new [B,N,S,D] over [B,S,N,D] storage.
at::Tensor empty_heads(const at::Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options()).transpose(1, 2);
}

struct Heads {
  at::Tensor q, k, v, documents;
  bool causal;
  double scale;
};

template <class T>
AttentionTask<T> task_of(const Heads& h, const at::Tensor& out, const at::Tensor& log_sums) {
  AttentionTask<T> task{};
  task.batch = h.q.size(0), task.heads = h.q.size(1), task.kv_heads = h.k.size(1);
  task.queries = h.q.size(2), task.keys = h.k.size(2), task.size = h.q.size(3);
  task.causal = h.causal, task.documents = pointer<int64_t>(h.documents), task.scale = static_cast<WideOf<T>>(h.scale);
  task.q = view_of<T, const T>(h.q), task.k = view_of<T, const T>(h.k), task.v = view_of<T, const T>(h.v);
  task.out = view_of<T, T>(out), task.log_sums = pointer<WideOf<T>>(log_sums);
  return task;
}

template <class T, class Run>
void over_heads(const AttentionTask<T>& task, const Kernels<T>& kernel, int64_t heads, const at::Tensor& like,
                const Run& run) {
  // A line of slack a thread: its part starts at a cache line of its own.
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(WideOf<T>));
  const int64_t scratch = (kernel.attention_scratch(task) + 2 * kLine - 1) / kLine * kLine;
  const auto memory = at::empty({parallel_chunks(heads, 1) * scratch}, like.options().dtype(wide_type(like)));
  parallel_chunks_for(0, heads, 1, [&](int64_t chunk, int64_t from, int64_t to) {
    run(task, from, to, pointer<WideOf<T>>(memory) + chunk * scratch);
  });
}

struct BlockedAttention : Function<BlockedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::optional<at::Tensor>& documents, bool causal, double scale) {
    const Heads heads{dense_rows(q), dense_rows(k), dense_rows(v), documents ? documents->contiguous() : at::Tensor(),
                      causal,        scale};
    const auto out = empty_heads(q);
    const auto log_sums = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(wide_type(q)));
    with_element_type(q, [&](auto element) {
      using T = decltype(element);
      const auto& kernel = kernels<T>();
      const auto task = task_of<T>(heads, out, log_sums);
      over_heads(task, kernel, task.batch * task.heads, q, kernel.attention_forward);
    });
    context->save_for_backward({q, k, v, heads.documents, out, log_sums});
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Heads heads{dense_rows(saved[0]),
                      dense_rows(saved[1]),
                      dense_rows(saved[2]),
                      saved[3],
                      context->saved_data["causal"].toBool(),
                      context->saved_data["scale"].toDouble()};
    const auto dout = dense_rows(gradients[0]);
    auto dq = empty_heads(heads.q), dk = empty_heads(heads.k), dv = empty_heads(heads.v);
    with_element_type(dq, [&](auto element) {
      using T = decltype(element);
      const auto& kernel = kernels<T>();
      auto task = task_of<T>(heads, saved[4], saved[5]);
      task.dout = view_of<T, const T>(dout);
      task.dq = view_of<T, T>(dq), task.dk = view_of<T, T>(dk), task.dv = view_of<T, T>(dv);
      over_heads(task, kernel, task.batch * task.kv_heads, dq, kernel.attention_backward);
    });
    const at::Tensor none;
    return {dq, dk, dv, none, none, none};
  }
};

at::Tensor library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  // ATen aligns its causal mask to the first key, which is ours only if S == T; a single query sees everything.
  const bool all_visible = !mask.documents.defined() && (!mask.causal || q.size(2) == 1);
  const bool aligned = !mask.documents.defined() && mask.causal && q.size(2) == k.size(2);
  std::optional<at::Tensor> allowed;
  if (!all_visible && !aligned) allowed = visible(q, k, mask);
  return at::scaled_dot_product_attention(q, k, v, allowed, 0.0, aligned && !all_visible, scale_of(q, mask),
                                          q.size(1) != k.size(1));
}

at::Tensor attended(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  const bool same_type = q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type();
  if (!has_kernel(q) || !same_type || q.numel() == 0 || k.numel() == 0 || q.size(2) < kFewestQueries)
    return library_attention(q, k, v, mask);
  const auto documents = mask.documents.defined() ? std::optional<at::Tensor>(mask.documents) : std::nullopt;
  return BlockedAttention::apply(q, k, v, documents, mask.causal, scale_of(q, mask));
}

/// Of the two products, scores and weighted values: what the mask's rule lets through.
double flops_of(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const double heads = static_cast<double>(q.size(0) * q.size(1)), size = static_cast<double>(q.size(3)),
               queries = static_cast<double>(q.size(2)), keys = static_cast<double>(k.size(2));
  const double pairs = mask.causal ? queries * (keys - queries) + queries * (queries + 1) / 2 : queries * keys;
  return 2 * 2 * heads * pairs * size;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check(q, k, v, mask);
  const double flops = flops_of(q, k, mask);
  tensor::announce_flops(flops);
  const at::Tensor out = attended(q, k, v, mask);
  tensor::announce_flops_in_backward(out, 2 * flops);  // of each product the gradients of both factors
  return out;
}

}  // namespace colossal::ops
