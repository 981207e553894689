#include "colossal/nn/latent_heads.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/layers.h"
#include "colossal/ops/rotary.h"

namespace colossal::nn {
namespace {

/// Reorders pairs of neighbours, 0 and 1, 2 and 3, to pairs i and i + D / 2. Scores stay equal if q and k both change.
at::Tensor halves_of_pairs(const at::Tensor& x) { return x.unflatten(-1, {-1, 2}).transpose(-1, -2).flatten(-2); }

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
    const auto parts = linears_->down(x, step).split_with_sizes({linears_->split.q_rows, options_.kv_rank, rotated}, -1);
    const at::Tensor q = q_norm_ ? linears_->q_up(q_norm_->forward(parts[0])) : parts[0];
    const auto of_q = q.unflatten(-1, {heads, shape_.head_dim}).split_with_sizes({plain, rotated}, -1);
    const auto of_kv = linears_->kv_up(kv_norm_->forward(parts[1]))
                           .unflatten(-1, {heads, plain + shape_.value_dim()})
                           .split_with_sizes({plain, shape_.value_dim()}, -1);
    Heads turned{of_q[1], parts[2].unsqueeze(2), of_kv[1]};
    linears_->place(turned, step);
    if (options_.interleaved) turned.q = halves_of_pairs(turned.q), turned.k = halves_of_pairs(turned.k);
    if (options_.rotary) turn(turned, step, *options_.rotary);
    turned.q = at::cat({of_q[0], turned.q}, -1);
    turned.k = at::cat({of_kv[0], turned.k.expand({-1, -1, heads, -1})}, -1);
    return turned;
  }

 private:
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
