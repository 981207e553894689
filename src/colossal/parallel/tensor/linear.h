// Linear layers and head projections over a Layout: those of blocks, of latent attention (nn/latent_heads.h), and those
// with a few outputs per token at the end of a model.
//
//   TensorOutputs values(parameters, layout, "head.value", hidden_size, 1, {});
//   const at::Tensor y = values.forward(hidden, step);          // [B, S, 1] on every rank
#pragma once
#include <functional>

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/recompute.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/table.h"

namespace colossal::parallel {

/// Returns the spec of a weight of `sizes` [out, in, ...] split as `split` says. Empty `out_segments` or `in_segments`
/// mean one segment.
tensor::ShardSpec weight_spec(const Layout& layout, const WeightSplit& split, const std::vector<int64_t>& sizes,
                              std::vector<tensor::Segment> out_segments = {},
                              std::vector<tensor::Segment> in_segments = {});

/// One direction through a linear layer of a block.
class TensorLinear {
 public:
  /// Makes the layer. The bias is split like the outputs. options.segments apply to the outputs of an expand and to
  /// the inputs of a contract.
  static std::unique_ptr<TensorLinear> expand(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name,
                                              int64_t in, int64_t out, const nn::LinearOptions&);
  /// `out_segments`: segments of the outputs, each split as the features of layout.outside; empty = one.
  static std::unique_ptr<TensorLinear> contract(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name,
                                                int64_t in, int64_t out, const nn::LinearOptions&,
                                                const std::vector<tensor::Segment>& out_segments = {});
  /// Makes an expand that does not communicate, for x that the ranks have whole: each computes its outputs of it. The
  /// caller exchanges what it needs of outputs and gradients.
  static std::unique_ptr<TensorLinear> alone(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name,
                                             int64_t in, int64_t out, const nn::LinearOptions&);
  /// Makes a layer inside, from features that every rank has whole to features split as layout.inside, without a bias.
  /// It does not communicate: the gradient of x that a rank computes is the part of its own outputs.
  static std::unique_ptr<TensorLinear> inside(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name,
                                              int64_t in, int64_t out, const nn::LinearOptions&);
  at::Tensor forward(const at::Tensor& x, const nn::Unary& before = {}) const;
  /// Computes the sum over the taps of a layer that has some.
  at::Tensor forward_taps(const std::vector<at::Tensor>& x) const;
  /// Computes the convolution of a layer with two taps, of before(x).
  at::Tensor forward(const at::Tensor& x, const nn::Pictures& pictures, const nn::Unary& before = {}) const;
  /// Computes an expand whose output rows from `first` on are copies that all ranks of `copies` hold. Each rank uses
  /// its copy for other heads, so their gradients are summed over `copies`.
  at::Tensor forward_with_copies(const at::Tensor& x, int64_t first, comm::Group& copies) const;
  /// Keeps the weight in its dtype if the product packs it.
  void keep_weight() { weight_.looked_up = true; }
  /// Returns the local weight, or an undefined tensor if the product has parameters of its own, as adapters have.
  at::Tensor plain_weight() const { return product_->parameters().empty() ? weight_.value : at::Tensor(); }

 private:
  static std::unique_ptr<TensorLinear> expand_by(const std::shared_ptr<const nn::Product>& product, nn::Parameters&,
                                                 std::shared_ptr<const Layout>, const std::string& name, int64_t in,
                                                 int64_t out, const nn::LinearOptions&);
  TensorLinear(nn::Parameters&, std::shared_ptr<const Layout> layout, const Direction& direction, nn::Parameter& weight,
               std::optional<Table> bias);

  std::shared_ptr<const Layout> layout_;
  std::shared_ptr<const nn::Product> product_;
  nn::DeferredGradients& deferred_;
  nn::Parameter& weight_;
  std::optional<Table> bias_;
  int64_t out_;  // number of output columns on this rank
};

/// A projection to whole heads of q, k and v. If several ranks hold the same kv head (fewer kv heads than ranks), it
/// gets the sum of their gradients.
class TensorHeads : public nn::HeadProjection {
 public:
  TensorHeads(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, const nn::AttentionShape&,
              nn::LinearOptions);
  nn::Heads forward(const at::Tensor& x, const nn::ForwardContext& step) override;

 private:
  std::shared_ptr<const Layout> layout_;
  nn::AttentionShape shape_;
  nn::HeadSplit split_;
  std::unique_ptr<TensorLinear> fused_;
  comm::Group& copies_;
  SequenceOrder order_;
};

/// A projection to whole heads of q from one hidden state and of k and v from another.
class TensorCrossHeads : public nn::CrossProjection {
 public:
  TensorCrossHeads(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, const nn::AttentionShape&,
                   nn::LinearOptions q, nn::LinearOptions kv);
  nn::Heads forward(const at::Tensor& x, const at::Tensor& source, const nn::ForwardContext& step) override;

 private:
  std::shared_ptr<const Layout> layout_;
  nn::HeadSplit split_;
  int64_t head_dim_;
  std::unique_ptr<TensorLinear> q_, kv_;
};

/// A linear layer from hidden states to hidden states, at the ends of a model. Each rank multiplies its features of x
/// by its columns of the weight, of which it has all rows. The sum over the ranks that split features gives each rank
/// its features of y. Ranks that hold the same hidden states (1D) compute the same.
///
/// Shapes:        x [..., in_local] -> y [..., out_local], both split as layout.outside.
/// Communication: over the ranks that split features, a reduce_scatter of [..., out] in forward and an
///                all_gather of the same size in backward; 1D none. The weight's shards: see Table.
/// Errors:        an `out` that does not divide by the ranks that split features ("comm"), as hidden sizes must
///                (check_sizes).
class TensorDense : public nn::Dense {
 public:
  TensorDense(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t in, int64_t out,
              const nn::LinearOptions&);
  at::Tensor forward(const at::Tensor& x) override;
  at::Tensor forward(const at::Tensor& x, const nn::Pictures& pictures) override;

 private:
  /// Returns this rank's features of y from its share of the sum, without the bias.
  at::Tensor complete(const at::Tensor& share) const;
  comm::Group& features_;
  Table weight_;
  std::optional<Table> bias_;
  std::shared_ptr<const nn::Product> product_;  // that of one process, perhaps with an adapter
};

/// A layer with a few outputs per token: nn::Outputs, and the logits of a classifier. Each rank multiplies its features
/// of its tokens by its columns of the weight, of which it has all rows.
///
/// Shapes:        hidden [B_local, S_local, H_local], split as layout.outside -> [B, S, out], equal on every rank.
/// Communication: one all_reduce of [B_local, S_local, out] over the ranks that split features (2 (n-1)/n of its
///                bytes), then joined() of the outputs. Weight and bias: see Table, in backward too. Backward sends
///                nothing else. 1D sends nothing.
/// Gradients:     hidden gets the gradient of this rank's block, complete if ranks have copies of it. Weight and bias
///                get the part of this rank's tokens; the gradient reducer sums the parts over the axes that split
///                tokens outside (Table). Ranks that split features or have copies compute the same part, which counts
///                once.
class TensorOutputs : public nn::Outputs {
 public:
  TensorOutputs(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t hidden, int64_t out,
                const nn::LinearOptions&);
  at::Tensor forward(const at::Tensor& hidden, const nn::ForwardContext& step) override;
  at::Tensor forward(const at::Tensor& hidden, const nn::Pictures& pictures, const nn::ForwardContext& step) override;
  /// Returns the outputs of this rank's tokens, [..., H_local] -> [..., out], equal on the ranks that split features.
  at::Tensor own(const at::Tensor& hidden) const { return own(hidden, false); }

 private:
  at::Tensor own(const at::Tensor& hidden, bool by_row) const;
  /// Returns `product` of a bias, which it gets if no rank has other features, else the sum over the ranks plus the
  /// bias.
  at::Tensor summed(const std::function<at::Tensor(const at::Tensor& bias)>& product) const;
  std::shared_ptr<const Layout> layout_;
  Table weight_;
  std::optional<Table> bias_;
  /// That of one process, for a convolution perhaps with an adapter
  std::shared_ptr<const nn::Product> product_{std::shared_ptr<void>(), &nn::serial_product()};  // static: never deleted
};

/// The linear layers of latent attention. Every rank has the latents of its tokens whole, and projects its own heads
/// from them.
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
