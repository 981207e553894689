#include "colossal/parallel/tensor/latents.h"

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::parallel {

TensorLatents::TensorLatents(nn::Parameters& p, std::shared_ptr<const Layout> layout, const std::string& name,
                             const nn::AttentionShape& s, const nn::LatentOptions& o)
    : LatentLinears(nn::LatentSplit(s, o, layout->mesh->coordinates().size(layout->inside.columns))),
      layout_(std::move(layout)),
      copied_(o.q_rank > 0 ? 0 : split.q_rows),
      copies_(layout_->mesh->group(layout_->inside.columns)),
      order_(SequenceOrder::inside(*layout_)) {
  const auto options = [&](std::vector<tensor::Segment> segments) {
    return nn::LinearOptions{.bias = false, .deviation = o.deviation, .segments = std::move(segments)};
  };
  down_ = TensorLinear::expand(p, layout_, name + ".latent", s.hidden, split.down_size(), options(split.down));
  kv_up_ = TensorLinear::inside(p, layout_, name + ".kv_up", o.kv_rank, split.kv_up.size, options({split.kv_up}));
  kv_up_->keep_weight();
  if (o.q_rank > 0)
    q_up_ = TensorLinear::inside(p, layout_, name + ".q_up", o.q_rank, split.q.size, options({split.q}));
}

at::Tensor TensorLatents::down(const at::Tensor& x, const nn::ForwardContext& step) {
  return order_.by_sequence(down_->forward_with_copies(x, copied_, copies_), step);
}

at::Tensor TensorLatents::q_up(const at::Tensor& latent) { return q_up_->forward(latent); }

at::Tensor TensorLatents::kv_up(const at::Tensor& latent) { return kv_up_->forward(latent); }

at::Tensor TensorLatents::kv_weight() const { return kv_up_->plain_weight(); }

void TensorLatents::place(nn::Heads& heads, const nn::ForwardContext& step) const {
  heads.tokens = tokens_of(*layout_, layout_->inside, step);
  heads.first_head = layout_->mesh->coordinates().index(layout_->inside.columns) * split.heads_local;
}

}  // namespace colossal::parallel
