// Modulation: norms whose scale and shift, and branches whose gate, depend on a conditioning vector of each row, as in
// diffusion transformers (adaLN-Zero, arXiv:2212.09748).
//
//   const std::unique_ptr<nn::Modulation> modulation = layers.modulation("blocks.0.modulation", 64, 3);
//   const std::vector<at::Tensor> m = modulation->forward(condition);               // condition [B, 64]
//   x = x + m[2] * branch(nn::modulated(norm->forward(x), m[0], m[1]));             // x [B, S, 64]
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace colossal::nn {

/// Makes several vectors of a conditioning vector: W silu(condition) + b. Weight [count * H, H] and bias start at 0, so
/// a model whose branches have gates begins as the identity.
///
/// In every layout the condition and the results are split as hidden states are: a rank has its rows, its features, and
/// the same row for all of its tokens. So where ranks split the tokens of a row they hold the same condition, and each
/// gets the gradient of its tokens, a partial sum.
class Modulation {
 public:
  virtual ~Modulation() = default;
  /// Takes this rank's part of [B, H] and returns its part of `count` tensors [B, 1, H].
  virtual std::vector<at::Tensor> forward(const at::Tensor& condition) = 0;
};

/// Returns x (1 + scale) + shift, for x [B, S, H] and results of a Modulation.
at::Tensor modulated(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale);

/// Returns `count` tensors [B, 1, features] from y [B, count * features].
std::vector<at::Tensor> modulation_vectors(const at::Tensor& y, int64_t count);

}  // namespace colossal::nn
