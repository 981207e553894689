// Linear layers and head projections over a Layout.
#pragma once
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
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
  static std::unique_ptr<TensorLinear> contract(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name,
                                                int64_t in, int64_t out, const nn::LinearOptions&);
  /// Makes a layer inside, from features that every rank has whole to features split as layout.inside, without a bias.
  /// It does not communicate: the gradient of x that a rank computes is the part of its own outputs.
  static std::unique_ptr<TensorLinear> inside(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name,
                                              int64_t in, int64_t out, const nn::LinearOptions&);
  at::Tensor forward(const at::Tensor& x, const nn::Unary& before = {}) const;
  /// Computes the sum over the taps of a layer that has some.
  at::Tensor forward_taps(const std::vector<at::Tensor>& x) const;
  /// Computes an expand whose output rows from `first` on are copies that all ranks of `copies` hold. Each rank uses
  /// its copy for other heads, so their gradients are summed over `copies`.
  at::Tensor forward_with_copies(const at::Tensor& x, int64_t first, comm::Group& copies) const;
  /// Keeps the weight in its dtype if the product packs it.
  void keep_weight() { weight_.looked_up = true; }
  /// Returns the local weight, or an undefined tensor if the product has parameters of its own, as adapters have.
  at::Tensor plain_weight() const { return product_->parameters().empty() ? weight_.value : at::Tensor(); }

 private:
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

}  // namespace colossal::parallel
