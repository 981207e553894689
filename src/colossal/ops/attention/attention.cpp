#include "colossal/ops/attention/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/attention/blocked.h"
#include "colossal/ops/attention/flash.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/ops/dispatch.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::ops {
namespace {

// Packing the keys costs more than it saves with fewer queries.
constexpr int64_t kMinQueries = 8;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

}  // namespace

at::Tensor alibi_slopes(int64_t heads) {
  require(heads > 0, "attention", "the number of heads must be at least 1: got ", heads);
  std::vector<double> slopes(heads);
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  for (int64_t i = 0; i < heads; ++i)
    slopes[i] = i < power ? std::exp2(-8.0 * static_cast<double>(i + 1) / static_cast<double>(power))
                          : std::exp2(-8.0 * static_cast<double>(2 * (i - power) + 1) / static_cast<double>(2 * power));
  return at::tensor(slopes, at::kDouble);
}

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionMask& mask) {
  check_attention(q, k, v, mask);
  const auto type = wide_type(q);
  const auto scores = attention_scores(q.to(type), k.to(type), mask);
  const auto values = v.repeat_interleave(q.size(1) / k.size(1), 1).to(type);
  if (mask.queries.empty()) return at::matmul(scores.softmax(-1), values).to(q.scalar_type());
  const auto blind = scores.eq(kHidden).all(-1, /*keepdim=*/true);  // the softmax over no keys is NaN
  const auto weights = scores.masked_fill(blind, 0).softmax(-1);
  return at::matmul(weights.masked_fill(blind, 0), values).to(q.scalar_type());
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

std::optional<at::Tensor> optional_of(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

struct BlockedAttention : Function<BlockedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& position, const at::Tensor& from, const at::Tensor& to,
                            const std::optional<at::Tensor>& documents,
                            const std::optional<at::Tensor>& query_documents,
                            const std::optional<at::Tensor>& key_position, const std::optional<at::Tensor>& alibi,
                            double scale, double soft_cap) {
    const BlockedHeads heads{q,
                             k,
                             v,
                             {position, from, to, documents.value_or(at::Tensor()),
                              query_documents.value_or(at::Tensor()), key_position.value_or(at::Tensor())},
                             alibi.value_or(at::Tensor()),
                             scale,
                             soft_cap};
    const BlockedResult result = blocked_attention(heads);
    context->save_for_backward({q, k, v, position, from, to, heads.ranges.documents, heads.ranges.query_documents,
                                heads.ranges.key_position, heads.alibi, result.out, result.log_sums});
    context->saved_data["scale"] = scale;
    context->saved_data["soft_cap"] = soft_cap;
    return result.out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const BlockedHeads heads{saved[0],
                             saved[1],
                             saved[2],
                             {saved[3], saved[4], saved[5], saved[6], saved[7], saved[8]},
                             saved[9],
                             context->saved_data["scale"].toDouble(),
                             context->saved_data["soft_cap"].toDouble()};
    const BlockedGradients d = blocked_attention_backward(heads, {saved[10], saved[11]}, gradients[0]);
    variable_list all{d.q, d.k, d.v};
    all.resize(12);  // the mask has no gradients
    return all;
  }
};

// Returns the number of leading keys that no query's window reaches.
int64_t unreached(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  if (mask.window == 0 || !mask.lengths.empty() || !mask.queries.empty()) return 0;
  return std::max<int64_t>(0, k.size(2) - q.size(2) - reach_of(mask));
}

at::Tensor blocked(const BlockedHeads& heads) {
  const KeyRanges& ranges = heads.ranges;
  return BlockedAttention::apply(heads.q, heads.k, heads.v, ranges.position, ranges.from, ranges.to,
                                 optional_of(ranges.documents), optional_of(ranges.query_documents),
                                 optional_of(ranges.key_position), optional_of(heads.alibi), heads.scale,
                                 heads.soft_cap);
}

at::Tensor kernel_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  return blocked(blocked_heads(q, k, v, mask));
}

// Rounding the biases to q's dtype loses nothing significant. A rounded bias of -x changes a weight of at most e^-x by
// the factor x * roundoff, less than one rounding of the weight 1.
at::Tensor masked_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  at::Tensor seen = visible(q, k, mask);
  if (mask.alibi.defined())
    seen = linear_biases(q, k, mask, wide_type(q)).masked_fill(seen.bitwise_not(), kHidden).to(q.scalar_type());
  const bool grouped = q.size(1) != k.size(1);
  if (grouped && is_for_accelerator(q)) {
    // On accelerators only LibTorch's path with full score matrices accepts both a mask and grouped queries, so keys
    // and values are repeated.
    const int64_t group = q.size(1) / k.size(1);
    return at::scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), seen, 0.0,
                                            false, scale_of(q, mask));
  }
  return at::scaled_dot_product_attention(q, k, v, seen, 0.0, false, scale_of(q, mask), grouped);
}

/// Returns the sizes of a path's result, and keeps for backward what the path keeps. LibTorch's fused paths keep the
/// tensors of ours: q, k, v, the result and a sum per query. LibTorch has no C++ kernels on meta for them. The path
/// with
/// a mask also has the mask and, for grouped queries on an accelerator, repeated keys and values.
at::Tensor attention_on_meta(AttentionPath path, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionMask& mask) {
  check_attention(q, k, v, mask);
  const int64_t first = path == AttentionPath::Kernel ? 0 : unreached(q, k, mask);
  BlockedHeads heads = blocked_heads(q, k.slice(2, first), v.slice(2, first), mask);
  if (path != AttentionPath::Masked) return blocked(heads);
  const bool by_row = mask.documents.defined() || !mask.lengths.empty();
  const at::Tensor seen =
      at::empty({by_row ? q.size(0) : 1, mask.alibi.defined() ? q.size(1) : 1, q.size(2), heads.k.size(2)},
                q.options().dtype(mask.alibi.defined() ? q.scalar_type() : at::kBool));
  heads.ranges.documents = seen;  // kept for backward, not read
  if (is_for_accelerator(q) && q.size(1) != k.size(1)) {
    const auto repeated = [&](const at::Tensor& x) {
      return x.unsqueeze(2).expand({-1, -1, q.size(1) / x.size(1), -1, -1}).flatten(1, 2);
    };
    heads.k = repeated(heads.k), heads.v = repeated(heads.v);
  }
  return blocked(heads);
}

}  // namespace

AttentionPath attention_path(bool has_kernel, const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t queries = q.size(2), keys = k.size(2) - unreached(q, k, mask);
  if (q.numel() == 0 || k.numel() == 0) has_kernel = false;
  // LibTorch supports neither caps nor queries that see no key.
  const bool ours = mask.soft_cap != 0 || !mask.queries.empty();
  if (has_kernel && (ours || queries >= kMinQueries)) return AttentionPath::Kernel;
  if (ours) return AttentionPath::Reference;
  const bool window_sees_all = mask.window == 0 || reach_of(mask) >= keys - 1;
  const bool is_ruled = mask.documents.defined() || mask.alibi.defined() || !mask.lengths.empty() || !window_sees_all;
  // LibTorch aligns its causal mask to the first key, which equals our alignment only if S = T; a single query sees
  // everything.
  const bool is_plain = !is_ruled && (!mask.causal || queries == 1 || queries == keys);
  // The Library path may run cuDNN's attention, which prepares a plan for every size.
  if (is_plain && !mask.grows) return AttentionPath::Library;
  if (takes_flash_attention(q, k, mask)) return AttentionPath::Flash;
  return is_plain ? AttentionPath::Library : AttentionPath::Masked;
}

at::Tensor attention_on(AttentionPath path, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const AttentionMask& mask) {
  check_attention(q, k, v, mask);
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

namespace {

/// Rows and heads run apart; queries too where positions do not count.
tensor::WholeOperator recorded(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionMask& mask) {
  const bool one_kind = mask.lengths.empty() && mask.queries.empty() && mask.keys.empty() && !mask.runs;
  const bool counts = mask.causal || mask.window > 0 || mask.alibi.defined() || mask.documents.defined();
  const bool apart = q.size(1) == k.size(1);  // else a head of keys serves several of queries
  std::string dims = apart ? "bnSD,bnTD,bnTD,bT,n->bnSD" : "bNSD,bMTD,bMTD,bT,N->bNSD";
  if (!counts) std::replace(dims.begin(), dims.end(), 'S', 's');
  AttentionMask rest = mask;
  rest.documents = rest.alibi = at::Tensor();
  return {"attention",
          one_kind ? dims : "",
          {q, k, v, mask.documents, mask.alibi},
          [rest](const std::vector<at::Tensor>& in) {
            AttentionMask own = rest;
            own.documents = in[3], own.alibi = in[4];
            return attention(in[0], in[1], in[2], own);
          }};
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check_attention(q, k, v, mask);
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(recorded(q, k, v, mask));
  if (is_for_accelerator(q) && mask.queries.empty() && mask.documents.defined() &&
      (mask.runs ? mask.runs->is_one_a_row : is_document_a_row(mask.documents))) {
    AttentionMask rest = mask;
    rest.documents = at::Tensor();
    rest.runs = nullptr;
    return attention(q, k, v, rest);
  }
  const bool same_type = q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type();
  const AttentionPath path = attention_path(has_kernel(q) && same_type, q, k, mask);
  const at::Tensor out = q.is_meta() ? attention_on_meta(path, q, k, v, mask) : attention_on(path, q, k, v, mask);
  if (!tensor::are_flops_counted()) return out;
  // Each pair takes two products, with the key and with the value; backward computes two gradients for each of them.
  const double forward =
      4 * static_cast<double>(q.size(1) * q.size(3)) * static_cast<double>(visible_pairs(q, k, mask));
  const tensor::Operation attention{tensor::Operation::Kind::Attention, q.scalar_type()};
  tensor::announce_flops(forward, attention);
  tensor::announce_flops_in_backward(out, 2 * forward, attention);
  return out;
}

}  // namespace colossal::ops
