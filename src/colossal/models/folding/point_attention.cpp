#include "colossal/models/folding/point_attention.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "colossal/ops/dispatch.h"
#include "colossal/ops/geometry/point_distances.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::models {
namespace {

constexpr double kUnitWeight = .541324854612918;  // its softplus is 1
constexpr double kTinyLength = 1e-8;              // under the root of lengths of points

double lecun_deviation(int64_t in) { return 1 / std::sqrt(static_cast<double>(in)); }

/// Returns features [.., 3 H P], all x before all y before all z, as points [.., H, P, 3] of `heads` heads.
at::Tensor points_of(const at::Tensor& features, int64_t heads) {
  return at::stack(features.unflatten(-1, at::IntArrayRef{3, heads, -1}).unbind(-3), -1);
}

/// Returns the global places of the points [B, N, H, P, 3] of residues.
at::Tensor placed(const ops::Rigid& frames, const at::Tensor& points) {
  return frames.unsqueeze(-1).unsqueeze(-1).apply(points);
}

/// Announces a pass over `pairs` pairs of residues with `features` products each, forward and backward.
void announce_pairs(const at::Tensor& of_result, double pairs, int64_t features, at::ScalarType dtype) {
  const tensor::Operation attention{tensor::Operation::Kind::Attention, dtype};
  const double operations = 2 * pairs * static_cast<double>(features);
  tensor::announce_flops(operations, attention);
  tensor::announce_flops_in_backward(of_result, 2 * operations, attention);
}

}  // namespace

/// Projections of all residues, heads before residues: [B, H, N, ..]. Points are global.
struct PointAttention::Sides {
  at::Tensor q, k, v;     // [B, H, N, head_dim]
  at::Tensor q_at, k_at;  // [B, N, H, query_points, 3]
  at::Tensor v_at;        // [B, H, N, value_points * 3]
  at::Tensor gamma;       // [H, 1, 1]
};

PointAttention::PointAttention(const std::string& name, const PointAttentionSizes& sizes, nn::Layers& make)
    : sizes_(sizes), ranks_(make.axial_ranks()) {
  const int64_t h = sizes.heads, both = sizes.query_points + sizes.value_points;
  const auto of_single = [&](const char* part, int64_t out) {
    return make.dense(name + part, sizes.single, out, {.deviation = lecun_deviation(sizes.single)});
  };
  head_weights_ = make.vector(name + ".head_weights", {h}, {.init = nn::Init::constant(kUnitWeight)});
  q_ = of_single(".q", h * sizes.head_dim);
  kv_ = of_single(".kv", 2 * h * sizes.head_dim);
  q_points_ = of_single(".q_points", 3 * h * sizes.query_points);
  kv_points_ = of_single(".kv_points", 3 * h * both);
  bias_ = make.dense(name + ".bias", sizes.pair, h, {.deviation = lecun_deviation(sizes.pair)});
  const int64_t features = h * (sizes.head_dim + 4 * sizes.value_points + sizes.pair);
  out_ = make.dense(name + ".out", features, sizes.single, {.deviation = 0});
}

PointAttention::Sides PointAttention::project(const at::Tensor& s, const ops::Rigid& frames) const {
  const auto type = frames.translation.scalar_type();
  const auto heads = [&](const at::Tensor& x) {
    return x.to(type).unflatten(-1, at::IntArrayRef{sizes_.heads, -1}).transpose(1, 2);
  };
  const std::vector<at::Tensor> kv = heads(kv_->forward(s)).split(sizes_.head_dim, -1);
  const at::Tensor q_at = placed(frames, points_of(q_points_->forward(s).to(type), sizes_.heads));
  const at::Tensor kv_at = placed(frames, points_of(kv_points_->forward(s).to(type), sizes_.heads));
  const at::Tensor v_at = kv_at.narrow(-2, sizes_.query_points, sizes_.value_points).flatten(-2).transpose(1, 2);
  const at::Tensor gamma = at::softplus(head_weights_->value().to(type)).view({-1, 1, 1});
  return {heads(q_->forward(s)), kv[0], kv[1], q_at, kv_at.narrow(-2, 0, sizes_.query_points), v_at, gamma};
}

/// Returns the inputs of the last layer, of the residues that have the rows z [B, rows, N, pair], from `first` on.
at::Tensor PointAttention::attended(const Sides& all, int64_t first, const at::Tensor& z, const ops::Rigid& frames,
                                    const at::Tensor& mask) const {
  const int64_t rows = z.size(1);
  const auto type = all.q.scalar_type();
  const double third = std::sqrt(1. / 3), width = std::sqrt(2. / (9. * static_cast<double>(sizes_.query_points)));
  at::Tensor scores = at::matmul(all.q.narrow(2, first, rows), all.k.transpose(-1, -2)) *
                      (third / std::sqrt(static_cast<double>(sizes_.head_dim)));
  scores = scores + third * bias_->forward(z).to(type).permute({0, 3, 1, 2});
  scores = scores -
           ops::summed_squared_distances(all.q_at.narrow(1, first, rows), all.k_at) * (all.gamma * (third * width / 2));
  const at::Tensor hidden = mask.eq(0).unsqueeze(1).unsqueeze(1);
  const at::Tensor weights = scores.masked_fill(hidden, std::numeric_limits<float>::lowest()).softmax(-1);

  const at::Tensor values = at::matmul(weights, all.v).transpose(1, 2).flatten(2);
  const at::Tensor global =
      at::matmul(weights, all.v_at).transpose(1, 2).unflatten(-1, at::IntArrayRef{sizes_.value_points, 3});
  const at::Tensor local = frames.narrow(-1, first, rows).unsqueeze(-1).unsqueeze(-1).apply_inverse(global);
  const at::Tensor lengths = (ops::squared_norm(local) + kTinyLength).sqrt().flatten(2);
  const at::Tensor pairs = at::matmul(weights.transpose(1, 2).to(z.scalar_type()), z).flatten(2).to(type);
  const at::Tensor out = at::cat({values, local.permute({0, 1, 4, 2, 3}).flatten(2), lengths, pairs}, -1);
  announce_pairs(out, static_cast<double>(weights.numel()),
                 2 * sizes_.head_dim + 3 * (sizes_.query_points + sizes_.value_points) + sizes_.pair, type);
  return out;
}

at::Tensor PointAttention::forward(const at::Tensor& s, const PairValues& pairs, const ops::Rigid& frames,
                                   const at::Tensor& mask) const {
  const Sides all = project(s, frames);
  const auto rows_of_pairs = [&](int64_t first, int64_t count) {
    const at::Tensor z = pairs.values.narrow(1, first, count);
    return pairs.norm ? pairs.norm->forward(z) : z;
  };
  const int64_t residues = s.size(1), begin = ranks_->own(residues).first,
                of_row = std::max<int64_t>(pairs.values.stride(1), 1);
  // Without gradients nothing outlives a slice of rows.
  const bool whole = at::GradMode::is_enabled() || tensor::operator_recorder() != nullptr;
  const int64_t at_once = whole ? residues : std::clamp<int64_t>(ops::kSliceElements / of_row, 1, residues);
  std::vector<at::Tensor> slices;
  ranks_->for_runs(residues, at_once, [&](int64_t first, int64_t count) {
    slices.push_back(attended(all, begin + first, rows_of_pairs(first, count), frames, mask));
  });
  const at::Tensor inputs = slices.size() == 1 ? slices[0] : at::cat(slices, 1);
  return ranks_->gathered(out_->forward(inputs.to(s.scalar_type())), 1, s.size(1));
}

}  // namespace colossal::models
