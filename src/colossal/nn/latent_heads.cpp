#include "colossal/nn/latent_heads.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/norm.h"
#include "colossal/ops/products/grouped_matmul.h"
#include "colossal/ops/rotary.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::nn {
namespace {

/// Reorders pairs of neighbours, 0 and 1, 2 and 3, to pairs i and i + D / 2. Scores stay equal if q and k both change.
at::Tensor halves_of_pairs(const at::Tensor& x) { return x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2); }

/// Multiplies each head of x [B, S, N, _] with its matrix of the stack [N, _, _]. In these products the bits of a token
/// do not depend on other tokens.
template <class Multiply>
at::Tensor by_head(const at::Tensor& x, const at::Tensor& matrices, const Multiply& multiply) {
  const int64_t rows = x.size(0), tokens = x.size(1), heads = x.size(2);
  ops::GroupEnds ends;
  for (int64_t head = 1; head <= heads; ++head) ends.push_back(head * rows * tokens);
  const tensor::ReadScope read({matrices});  // the kernels take addresses of a parameter
  return multiply(x.permute({2, 0, 1, 3}).flatten(0, 2), matrices, ends)
      .unflatten(0, {heads, rows, tokens})
      .permute({1, 2, 0, 3});
}

class LatentHeads final : public HeadProjection {
 public:
  LatentHeads(Layers& make, const std::string& name, const AttentionShape& shape, const LatentOptions& options,
              std::unique_ptr<LatentLinears> linears)
      : shape_(shape), options_(options), linears_(std::move(linears)) {
    const NormOptions norm{.epsilon = options.epsilon};
    if (options.q_rank > 0) q_norm_ = make.head_norm(name + ".q_norm", options.q_rank, norm);
    kv_norm_ = make.head_norm(name + ".kv_norm", options.kv_rank, norm);
  }

  Heads forward(const at::Tensor& x, const ForwardContext& step) override {
    const int64_t rotated = options_.rope_dim, plain = shape_.head_dim - rotated, heads = linears_->split.heads_local;
    // One split, not narrows: the backward of each narrow would fill a zero gradient of the whole and add them up.
    const auto parts =
        linears_->down(x, step).split_with_sizes({linears_->split.q_rows, options_.kv_rank, rotated}, -1);
    const at::Tensor q = q_norm_ ? linears_->q_up(q_norm_->forward(parts[0])) : parts[0];
    const auto of_q = q.unflatten(-1, {heads, shape_.head_dim}).split_with_sizes({plain, rotated}, -1);
    const at::Tensor latent = kv_norm_->forward(parts[1]);
    Heads turned{of_q[1], parts[2].unsqueeze(2), {}};
    linears_->place(turned, step);
    if (options_.interleaved) turned.q = halves_of_pairs(turned.q), turned.k = halves_of_pairs(turned.k);
    if (options_.rotary) turn(turned, step, *options_.rotary);
    const AttentionCache* cache = cache_of(step);
    const bool joins = cache && cache->joins_values() && !at::GradMode::is_enabled();
    const at::Tensor weight = joins ? linears_->kv_weight() : at::Tensor();
    if (weight.defined()) return of_latents(of_q[0], turned, latent, weight);
    const auto of_kv = linears_->kv_up(latent)
                           .unflatten(-1, {heads, plain + shape_.value_dim()})
                           .split_with_sizes({plain, shape_.value_dim()}, -1);
    turned.q = at::cat({of_q[0], turned.q}, -1);
    turned.k = at::cat({of_kv[0], turned.k.expand({-1, -1, heads, -1})}, -1);
    turned.v = of_kv[1];
    return turned;
  }

 private:
  /// Returns the heads that read latents. q [B, S, N, D - R], latent [B, S, kv_rank]; `turned` has the rotated
  /// features.
  Heads of_latents(const at::Tensor& q, Heads turned, const at::Tensor& latent, const at::Tensor& weight) const {
    const int64_t heads = linears_->split.heads_local, rank = options_.kv_rank;
    const auto of_kv = weight.unflatten(0, {heads, -1}).split_with_sizes({q.size(-1), shape_.value_dim()}, 1);
    turned.q = at::cat({by_head(q, of_kv[0], ops::grouped_nn), turned.q}, -1);
    turned.k = at::cat({latent.unsqueeze(2), turned.k}, -1);
    const auto to_values = [](const at::Tensor& x, const at::Tensor& w, const ops::GroupEnds& ends) {
      return ops::grouped_nt(x, w, ends);
    };
    turned.finish = [=, values = of_kv[1]](const at::Tensor& out) {
      return by_head(out.narrow(-1, 0, rank), values, to_values).flatten(2);
    };
    return turned;
  }

  AttentionShape shape_;
  LatentOptions options_;
  std::unique_ptr<LatentLinears> linears_;
  std::unique_ptr<Norm> q_norm_, kv_norm_;  // q_norm_: null without a latent of queries
};

}  // namespace

void check_latents(const std::string& name, const AttentionShape& s, const LatentOptions& o) {
  require(s.kv_heads == s.heads, "model", "the latent attention ", name, " must have as many kv_heads as heads: got ",
          s.kv_heads, " and ", s.heads);
  require(o.kv_rank > 0 && o.q_rank >= 0, "model", "the ranks of ", name,
          " must be at least 1, or 0 for queries without a latent: got q ", o.q_rank, ", kv ", o.kv_rank);
  require(o.rope_dim >= 2 && o.rope_dim % 2 == 0 && o.rope_dim < s.head_dim, "model", "the rotated features of ", name,
          " must be even, at least 2 and fewer than the features of a head: got ", o.rope_dim, " of ", s.head_dim);
  require(!o.rotary || o.rotary->rotated() == o.rope_dim, "model", "the rotary table of ", name, " must rotate ",
          o.rope_dim, " features: got ", o.rotary ? o.rotary->rotated() : 0);
}

LatentSplit::LatentSplit(const AttentionShape& s, const LatentOptions& o, int64_t parts) {
  const HeadSplit of_heads(s, parts);
  heads_local = of_heads.heads_local;
  q = of_heads.q;
  const int64_t both = s.head_dim - o.rope_dim + s.value_dim(), shared = o.kv_rank + o.rope_dim;
  kv_up = {s.heads * both, both};
  q_rows = o.q_rank > 0 ? o.q_rank : heads_local * s.head_dim;
  const tensor::Segment first = o.q_rank > 0 ? tensor::Segment{o.q_rank, o.q_rank, true} : q;
  down = {first, {shared, shared, true}};
}

int64_t LatentSplit::down_size() const { return down[0].size + down[1].size; }

std::unique_ptr<HeadProjection> make_latent_heads(Layers& make, const std::string& name, const AttentionShape& shape,
                                                  const LatentOptions& options,
                                                  std::unique_ptr<LatentLinears> linears) {
  return std::make_unique<LatentHeads>(make, name, shape, options, std::move(linears));
}

}  // namespace colossal::nn
