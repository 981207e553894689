#include "colossal/nn/gated_attention.h"

#include <ATen/ATen.h>

#include "colossal/nn/layers.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/attention/biased.h"
#include "colossal/ops/dispatch.h"

namespace colossal::nn {
namespace {

/// Added to the number of elements of which a query is the mean, so that a column without any has a mean.
constexpr double kFewElements = 1e-10;

/// The order of dimensions [B, P, Q, heads, width] as [groups, rows, heads, attended, width], and back.
const std::vector<int64_t>& to_rows(AttendedAxis axis) {
  static const std::vector<int64_t> first{0, 2, 3, 1, 4}, second{0, 1, 3, 2, 4};
  return axis == AttendedAxis::First ? first : second;
}
const std::vector<int64_t>& from_rows(AttendedAxis axis) {
  static const std::vector<int64_t> first{0, 3, 1, 2, 4}, second{0, 1, 3, 2, 4};
  return axis == AttendedAxis::First ? first : second;
}

}  // namespace

at::Tensor seen(const at::Tensor& mask) {
  return !mask.defined() || mask.scalar_type() == at::kBool ? mask : mask.ne(0);
}

GatedAttention::GatedAttention(Layers& make, const std::string& name, int64_t in, const GatedHeads& heads)
    : heads_(heads),
      q_(normed_layer(make, name + ".linear_q", in, heads.heads * heads.width, false)),
      k_(normed_layer(make, name + ".linear_k", in, heads.heads * heads.width, false)),
      v_(normed_layer(make, name + ".linear_v", in, heads.heads * heads.width, false)),
      o_(silent_layer(make, name + ".linear_o", heads.heads * heads.width, in, true)),
      g_(open_gate(make, name + ".linear_g", in, heads.heads * heads.width, true)) {}

at::Tensor GatedAttention::forward(const at::Tensor& x, AttendedAxis axis, const GatedScores& scores) const {
  const auto of_heads = [&](const at::Tensor& y) {
    return y.view({x.size(0), x.size(1), x.size(2), heads_.heads, heads_.width}).permute(to_rows(axis));
  };
  ops::AttentionBias rules{.bias = scores.bias, .keys = seen(scores.mask)};
  if (rules.keys.defined() && axis == AttendedAxis::First) rules.keys = rules.keys.transpose(1, 2);
  const at::Tensor out =
      ops::biased_attention(of_heads(q_->forward(x)), of_heads(k_->forward(x)), of_heads(v_->forward(x)), rules);
  return o_->forward(ops::sigmoid_gate(g_->forward(x), out.permute(from_rows(axis)).flatten(3)));
}

GlobalAttention::GlobalAttention(Layers& make, const std::string& name, int64_t in, const GatedHeads& heads)
    : heads_(heads),
      q_(normed_layer(make, name + ".linear_q", in, heads.heads * heads.width, false)),
      k_(normed_layer(make, name + ".linear_k", in, heads.width, false)),
      v_(normed_layer(make, name + ".linear_v", in, heads.width, false)),
      o_(silent_layer(make, name + ".linear_o", heads.heads * heads.width, in, true)),
      g_(open_gate(make, name + ".linear_g", in, heads.heads * heads.width, true)) {}

at::Tensor GlobalAttention::forward(const at::Tensor& x, const at::Tensor& mask) const {
  const int64_t batch = x.size(0), columns = x.size(2);
  const auto wide = ops::wide_type(x);
  const at::Tensor weights = mask.to(wide).unsqueeze(-1);
  const at::Tensor mean = (x * weights).sum(1) / (weights.sum(1) + kFewElements);
  // The heads are the queries, because all of them read the same keys: [B, N, 1, heads, width].
  const at::Tensor q = q_->forward(mean.to(x.scalar_type())).view({batch, columns, 1, heads_.heads, heads_.width});
  const auto columns_of = [](const at::Tensor& y) { return y.transpose(1, 2).unsqueeze(2); };
  const at::Tensor out = ops::biased_attention(q, columns_of(k_->forward(x)), columns_of(v_->forward(x)),
                                               {.keys = seen(mask).transpose(1, 2)});
  const at::Tensor everywhere =
      out.reshape({batch, 1, columns, heads_.heads * heads_.width}).expand({-1, x.size(1), -1, -1});
  return o_->forward(ops::sigmoid_gate(g_->forward(x), everywhere));
}

}  // namespace colossal::nn
