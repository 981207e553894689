// Modulation over a Layout: the vectors that a conditioning vector of each row becomes (nn/modulation.h).
//
//   TensorModulation modulation(parameters, layout, "blocks.0.modulation", hidden, 6);
//   const std::vector<at::Tensor> m = modulation.forward(condition);        // six times [B_local, 1, H_local]
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/nn/modulation.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/linear.h"

namespace colossal::parallel {

/// A modulation of hidden states. All ranks of a tensor mode divide its matrix [k H, H], for k vectors.
///
/// Layout:        if ranks have whole features between blocks (1D), each has some rows of the matrix, as those of an
///                expand, and computes its outputs of the whole condition; all of them are then gathered. Modes that
///                split features (2D, 2.5D, 3D) compute it as a contract whose k segments of outputs are each split as
///                features are.
/// Communication: elements of the B_local rows of a rank; they do not grow with the tokens. 1D on p ranks: an
///                all_gather of k H a row in forward, an all_reduce of H in backward. In its sequence form, where
///                gradients are sums over tokens: a reduce_scatter of k H in backward instead. 2D and 2.5D: that of a
///                contract of H to k H features. 3D: the same, and an exchange of the condition, from the rows and
///                features that a rank has outside to those that it has inside: an all_gather of H a row, then one of
///                the rows, and in backward a reduce_scatter of each.
class TensorModulation : public nn::Modulation {
 public:
  TensorModulation(nn::Parameters&, std::shared_ptr<const Layout>, const std::string& name, int64_t hidden,
                   int64_t count);
  std::vector<at::Tensor> forward(const at::Tensor& condition) override;

 private:
  at::Tensor with_whole_features(const at::Tensor& x) const;
  at::Tensor inside_part(const at::Tensor& x) const;

  std::shared_ptr<const Layout> layout_;
  int64_t count_, outputs_;
  bool splits_features_, splits_tokens_;
  /// Ranks that divide the matrix where features are whole; ranks that split features, and rows that others have inside
  comm::Group &rows_, &features_, &other_rows_;
  std::unique_ptr<TensorLinear> linear_;
};

}  // namespace colossal::parallel
