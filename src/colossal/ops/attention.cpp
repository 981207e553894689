#include "colossal/ops/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/attention_mask.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/document_runs.h"
#include "colossal/ops/flash_attention.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

// Below this many queries packing the keys costs more than it saves.
constexpr int64_t kFewestQueries = 8;

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  require(q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
          "attention", "q must be [B,N,S,D], k and v [B,Nkv,T,D]: got ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  require(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention", "heads must divide by key-value heads: got ",
          q.size(1), " and ", k.size(1));
  check_mask(q, k, mask);
}

double scale_of(const at::Tensor& q, const AttentionMask& mask) {
  return mask.scale != 0 ? mask.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

constexpr double kHidden = -std::numeric_limits<double>::infinity();

}  // namespace

at::Tensor alibi_slopes(int64_t heads) {
  require(heads > 0, "attention", "there must be a head to have a slope: got ", heads);
  std::vector<double> slopes(heads);
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  for (int64_t i = 0; i < heads; ++i)
    slopes[i] = i < power ? std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(power))
                          : std::exp2(-8.0 * static_cast<double>(2 * (i - power) + 1) / static_cast<double>(2 * power));
  return at::tensor(slopes, at::kDouble);
}

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionMask& mask) {
  check(q, k, v, mask);
  const int64_t group = q.size(1) / k.size(1);
  const auto type = wide_type(q);
  const auto keys = k.repeat_interleave(group, 1).to(type), values = v.repeat_interleave(group, 1).to(type);
  auto scores = at::matmul(q.to(type), keys.transpose(2, 3)) * scale_of(q, mask);
  if (mask.soft_cap != 0) scores = (scores / mask.soft_cap).tanh() * mask.soft_cap;
  if (mask.alibi.defined()) scores = scores + linear_biases(q, k, mask, type);
  const auto hidden = visible(q, k, mask).logical_not();
  if (mask.queries.empty())
    return at::matmul(scores.masked_fill(hidden, kHidden).softmax(-1), values).to(q.scalar_type());
  const auto blind = hidden.all(-1, /*keepdim=*/true);  // softmax of nothing is not a number
  const auto weights = scores.masked_fill(hidden.logical_and(blind.logical_not()), kHidden).softmax(-1);
  return at::matmul(weights.masked_fill(blind, 0), values).to(q.scalar_type());
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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
  at::Tensor q, k, v, alibi;
  KeyRanges mask;
  double scale, soft_cap;
};

template <class T>
AttentionTask<T> task_of(const Heads& h, const at::Tensor& out, const at::Tensor& log_sums) {
  AttentionTask<T> task{};
  task.batch = h.q.size(0), task.heads = h.q.size(1), task.kv_heads = h.k.size(1);
  task.queries = h.q.size(2), task.keys = h.k.size(2), task.size = h.q.size(3);
  task.from = pointer<int64_t>(h.mask.from), task.to = pointer<int64_t>(h.mask.to);
  task.position = pointer<int64_t>(h.mask.position);
  task.mask_stride = h.mask.from.size(0) > 1 ? task.queries : 0;
  task.documents = pointer<int64_t>(h.mask.documents);
  task.query_documents = pointer<int64_t>(h.mask.query_documents), task.alibi = pointer<double>(h.alibi);
  task.scale = static_cast<WideOf<T>>(h.scale), task.soft_cap = static_cast<WideOf<T>>(h.soft_cap);
  task.q = view_of<T, const T>(h.q), task.k = view_of<T, const T>(h.k), task.v = view_of<T, const T>(h.v);
  task.out = view_of<T, T>(out), task.log_sums = pointer<WideOf<T>>(log_sums);
  return task;
}

/// body(T()) of q's element type; nothing on meta, where the sizes of results are all there is.
template <class Body>
void compute(const at::Tensor& q, const Body& body) {
  if (!q.is_meta()) with_element_type(q, body);
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

std::optional<at::Tensor> optional_of(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

struct BlockedAttention : Function<BlockedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& position, const at::Tensor& from, const at::Tensor& to,
                            const std::optional<at::Tensor>& documents,
                            const std::optional<at::Tensor>& query_documents, const std::optional<at::Tensor>& alibi,
                            double scale, double soft_cap) {
    const Heads heads{dense_rows(q),
                      dense_rows(k),
                      dense_rows(v),
                      alibi.value_or(at::Tensor()),
                      {position, from, to, documents.value_or(at::Tensor()), query_documents.value_or(at::Tensor())},
                      scale,
                      soft_cap};
    const auto out = empty_heads(q);
    const auto log_sums = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(wide_type(q)));
    compute(q, [&](auto element) {
      using T = decltype(element);
      const auto& kernel = kernels<T>();
      const auto task = task_of<T>(heads, out, log_sums);
      over_heads(task, kernel, task.batch * task.heads, q, kernel.attention_forward);
    });
    context->save_for_backward(
        {q, k, v, position, from, to, heads.mask.documents, heads.mask.query_documents, heads.alibi, out, log_sums});
    context->saved_data["scale"] = scale;
    context->saved_data["soft_cap"] = soft_cap;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Heads heads{dense_rows(saved[0]),
                      dense_rows(saved[1]),
                      dense_rows(saved[2]),
                      saved[8],
                      {saved[3], saved[4], saved[5], saved[6], saved[7]},
                      context->saved_data["scale"].toDouble(),
                      context->saved_data["soft_cap"].toDouble()};
    const auto dout = dense_rows(gradients[0]);
    auto dq = empty_heads(heads.q), dk = empty_heads(heads.k), dv = empty_heads(heads.v);
    compute(dq, [&](auto element) {
      using T = decltype(element);
      const auto& kernel = kernels<T>();
      auto task = task_of<T>(heads, saved[9], saved[10]);
      task.dout = view_of<T, const T>(dout);
      task.dq = view_of<T, T>(dq), task.dk = view_of<T, T>(dk), task.dv = view_of<T, T>(dv);
      over_heads(task, kernel, task.batch * task.kv_heads, dq, kernel.attention_backward);
    });
    variable_list all{dq, dk, dv};
    all.resize(11);  // the mask has none
    return all;
  }
};

// Leading keys that no query's window reaches.
int64_t unreached(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  if (mask.window == 0 || !mask.lengths.empty() || !mask.queries.empty()) return 0;
  return std::max<int64_t>(0, k.size(2) - q.size(2) - reach_of(mask));
}

at::Tensor kernel_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  const at::Tensor none = at::empty({0}, at::kLong);
  const KeyRanges ranges = q.is_meta() ? KeyRanges{none, none, none, {}, {}} : key_ranges(q, k, mask);
  const at::Tensor alibi =
      mask.alibi.defined() ? mask.alibi.detach().to(at::kCPU, at::kDouble).contiguous() : at::Tensor();
  return BlockedAttention::apply(q, k, v, ranges.position, ranges.from, ranges.to, optional_of(ranges.documents),
                                 optional_of(ranges.query_documents), optional_of(alibi), scale_of(q, mask),
                                 mask.soft_cap);
}

// Biases in q's dtype lose nothing that counts: rounding a bias of -x changes a weight of at most e^-x by the part
// x * roundoff, so by less than a rounding of the weight 1.
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  at::Tensor seen = visible(q, k, mask);
  if (mask.alibi.defined())
    seen = linear_biases(q, k, mask, wide_type(q)).masked_fill(seen.logical_not(), kHidden).to(q.scalar_type());
  const bool grouped = q.size(1) != k.size(1);
  if (grouped && !q.is_cpu()) {
    // Elsewhere only the path that keeps whole scores takes a mask and grouped queries at once.
    const int64_t group = q.size(1) / k.size(1);
    return at::scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), seen, 0.0,
                                            false, scale_of(q, mask));
  }
  return at::scaled_dot_product_attention(q, k, v, seen, 0.0, false, scale_of(q, mask), grouped);
}

}  // namespace

AttentionPath attention_path(bool has_kernel, const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t queries = q.size(2), keys = k.size(2) - unreached(q, k, mask);
  if (q.numel() == 0 || k.numel() == 0) has_kernel = false;
  // LibTorch's knows no caps, nor queries that see nothing.
  const bool ours = mask.soft_cap != 0 || !mask.queries.empty();
  if (has_kernel && (ours || queries >= kFewestQueries)) return AttentionPath::Kernel;
  if (ours) return AttentionPath::Reference;
  const bool window_sees_all = mask.window == 0 || reach_of(mask) >= keys - 1;
  const bool is_ruled = mask.documents.defined() || mask.alibi.defined() || !mask.lengths.empty() || !window_sees_all;
  // LibTorch aligns its causal mask to the first key, which is ours only if S = T; a single query sees everything.
  const bool is_plain = !is_ruled && (!mask.causal || queries == 1 || queries == keys);
  // Of what LibTorch may choose cuDNN's attention makes a plan for every size.
  if (is_plain && !mask.grows) return AttentionPath::Library;
  if (takes_flash_attention(q, k, mask)) return AttentionPath::Flash;
  return is_plain ? AttentionPath::Library : AttentionPath::Masked;
}

at::Tensor attention_on(AttentionPath path, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionMask& mask) {
  check(q, k, v, mask);
  if (path == AttentionPath::Kernel) return kernel_attention(q, k, v, mask);
  if (path == AttentionPath::Reference) return attention_reference(q, k, v, mask);
  if (const int64_t first = unreached(q, k, mask); first > 0) {
    AttentionMask rest = mask;
    rest.runs = nullptr;
    if (mask.documents.defined()) rest.documents = mask.documents.slice(1, first);
    return attention_on(path, q, k.slice(2, first), v.slice(2, first), rest);
  }
  if (path == AttentionPath::Masked) return masked_attention(q, k, v, mask);
  if (path == AttentionPath::Flash) return flash_attention(q, k, v, mask, scale_of(q, mask));
  return at::scaled_dot_product_attention(q, k, v, {}, 0.0, mask.causal && q.size(2) > 1, scale_of(q, mask),
                                          q.size(1) != k.size(1));
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check(q, k, v, mask);
  if (!q.is_cpu() && !q.is_meta() && mask.queries.empty() && mask.documents.defined() &&
      (mask.runs ? mask.runs->is_one_a_row : is_document_a_row(mask.documents))) {
    AttentionMask rest = mask;
    rest.documents = at::Tensor();
    rest.runs = nullptr;
    return attention(q, k, v, rest);
  }
  const bool same_type = q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type();
  const AttentionPath path =
      q.is_meta() ? AttentionPath::Kernel : attention_path(has_kernel(q) && same_type, q, k, mask);
  const at::Tensor out = attention_on(path, q, k, v, mask);
  if (!tensor::are_flops_counted()) return out;
  // Of a pair two products, of keys and of values; backward makes the gradients of both factors of each.
  const double forward =
      4 * static_cast<double>(q.size(1) * q.size(3)) * static_cast<double>(visible_pairs(q, k, mask));
  tensor::announce_flops(forward);
  tensor::announce_flops_in_backward(out, 2 * forward);
  return out;
}

}  // namespace colossal::ops
