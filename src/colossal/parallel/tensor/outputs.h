// Layers with a few outputs per token over a Layout: nn::Outputs, and the logits of a classifier.
//
//   TensorOutputs values(parameters, layout, "head.value", hidden_size, 1, {});
//   const at::Tensor y = values.forward(hidden, step);          // [B, S, 1] on every rank
#pragma once
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/outputs.h"
#include "colossal/parallel/tensor/table.h"

namespace colossal::parallel {

/// A layer in which each rank multiplies its features of its tokens by its columns of the weight, of which it has all
/// rows.
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
  /// Returns the outputs of this rank's tokens, [..., H_local] -> [..., out], equal on the ranks that split features.
  at::Tensor own(const at::Tensor& hidden) const;

 private:
  std::shared_ptr<const Layout> layout_;
  Table weight_;
  std::optional<Table> bias_;
};

}  // namespace colossal::parallel
