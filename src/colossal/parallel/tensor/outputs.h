// A few numbers of each token, over a Layout: nn::Outputs, and the logits of a classifier.
//
//   const TensorOutputs values(parameters, layout, "head.value", hidden_size, 1, {});
//   const at::Tensor y = values.forward(hidden, step);          // [B, S, 1] on every rank
#pragma once
#include "colossal/nn/layers.h"
#include "colossal/parallel/tensor/table.h"

namespace colossal::parallel {

/// Each rank multiplies its features of its tokens by its columns of the weight, whose rows it has all.
///
/// Shapes:        hidden as layout.outside, [B_local, S_local, H_local] -> [B, S, out], the same on every rank.
/// Communication: over the ranks that split features one all_reduce of [B_local, S_local, out], and joined() of as much.
///                An all_reduce of L elements sends 2 (n-1)/n L of their bytes, an all_gather (n-1)/n of the result.
///                Backward: none but the pieces of weight and bias: see Table. 1D: none at all; its sequence form the
///                all_reduce of joined().
/// Gradients:     of hidden the rank's block, whole where ranks hold copies. Of weight and bias its tokens' share, which
///                the gradient reducer sums over the axes that split tokens outside (Table): ranks that split features,
///                or that hold copies, make the same sum and add nothing to one another.
class TensorOutputs : public nn::Outputs {
 public:
  TensorOutputs(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t hidden, int64_t out,
                const nn::LinearOptions&);
  at::Tensor forward(const at::Tensor& hidden, const nn::Step& step) override;
  /// Of this rank's tokens: [..., H_local] -> [..., out], the same on the ranks that split features.
  at::Tensor own(const at::Tensor& hidden) const;

 private:
  std::shared_ptr<const Layout> layout_;
  Table weight_;
  std::optional<Table> bias_;
};

}  // namespace colossal::parallel
