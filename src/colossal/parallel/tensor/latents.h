// The linear layers of latent attention (nn/latent_heads.h) over a Layout.
#pragma once
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/parallel/tensor/linear.h"

namespace colossal::parallel {

/// Every rank has the latents of its tokens whole, and projects its own heads from them.
///
/// Layout:        the rows of `name`.latent are those of an expand, copied to all ranks that split heads, except the
///                rows of queries without a latent, which are split like heads. `name`.q_up and `name`.kv_up are split
///                like heads; ranks with other tokens hold copies, whose gradients are partial sums.
/// Communication: that of one expand of hidden to q_rank + kv_rank + rope_dim features, and one all_reduce of the
///                gradient of the copied rows, (q_rank + kv_rank + rope_dim) x hidden elements, over the ranks that
///                split heads. The projections from latents send nothing.
class TensorLatents : public nn::LatentLinears {
 public:
  TensorLatents(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, const nn::AttentionShape&,
                const nn::LatentOptions&);
  at::Tensor down(const at::Tensor& x, const nn::ForwardContext& step) override;
  at::Tensor q_up(const at::Tensor& latent) override;
  at::Tensor kv_up(const at::Tensor& latent) override;
  at::Tensor kv_weight() const override;
  void place(nn::Heads& heads, const nn::ForwardContext& step) const override;

 private:
  std::shared_ptr<const Layout> layout_;
  int64_t copied_;  // first copied row of the latents' weight on this rank
  std::unique_ptr<TensorLinear> down_, q_up_, kv_up_;
  comm::Group& copies_;
  SequenceOrder order_;
};

}  // namespace colossal::parallel
