// Linear layers between hidden states: pairs of an Expand and its Contract, and Dense, which stands at the ends of a
// model.
//
//   const std::unique_ptr<nn::Expand> up = layers.expand("mlp.up", 64, 256, {});
//   const std::unique_ptr<nn::Contract> down = layers.contract("mlp.down", 256, 64, {});
//   y = down->forward(up->forward(x).map(ops::gelu, step));             // [B, S, 64] -> [B, S, 64]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/recompute.h"
#include "colossal/tensor/shard_spec.h"

namespace colossal::nn {

struct Pictures;  // nn/convolution.h

/// An activation between an Expand and its Contract. Its features are sharded differently from those outside, and under
/// some layouts its rows too, even if the sizes match the sizes of a residual. It is a type of its own so that it
/// cannot be added to a residual: an Expand without its Contract does not compile.
struct Inside {
  at::Tensor tensor;
  /// Function that the Contract applies first and computes again in backward, so that its result is not kept; empty =
  /// none
  Unary pending{};
  /// Applies an elementwise operation. With Recompute::Selective in training, the Contract applies it later
  /// (`pending`).
  Inside map(const Unary& operation, const ForwardContext& step) const {
    if (step.training && step.recompute == Recompute::Selective) return {tensor, operation};
    return {operation(tensor)};
  }
};

/// Returns the tensors, to which pending functions have been applied.
std::vector<at::Tensor> tensors_of(const std::vector<Inside>& x);

/// Returns the features of both, those of `second` behind. Pending functions stay pending.
Inside side_by_side(const Inside& first, const Inside& second);

/// Linear layer from outside to inside: y [.., out] = x [B, S, in] Wt + bias. Under some layouts a rank has more
/// tokens, or other tokens, inside than outside.
class Expand {
 public:
  virtual ~Expand() = default;
  virtual Inside forward(const at::Tensor& x) = 0;
  /// Returns the sum over the taps of x[tap] W[:, :, tap]t, plus the bias, for a layer with LinearOptions::taps. x has
  /// a tensor for each tap, the last dimension of taps changing fastest: what stands next to each token or pixel.
  /// Communication: that of one product for each tap.
  /// Errors ("model"): another number of tensors; a layer without taps.
  virtual Inside forward_taps(const std::vector<at::Tensor>& x) = 0;
  /// Returns the convolution of pictures with a layer of two LinearOptions::taps (nn/convolution.h).
  /// Communication: that of forward(). Where a product gathers or sums blocks of x and of the weight, they have the
  /// inputs of all taps.
  /// Errors ("model"): a layer without two taps; another number of pixels.
  virtual Inside forward(const at::Tensor& x, const Pictures& pictures) = 0;
};

/// Linear layer from inside back to outside: y [B, S, out] = x [.., in] Wt + bias, where x is the output of an Expand.
class Contract {
 public:
  virtual ~Contract() = default;
  virtual at::Tensor forward(const Inside& x) = 0;
  /// As Expand::forward_taps(), in the other direction.
  virtual at::Tensor forward_taps(const std::vector<Inside>& x) = 0;
  /// As Expand::forward() of pictures, in the other direction. A pending function is computed again in backward.
  virtual at::Tensor forward(const Inside& x, const Pictures& pictures) = 0;
};

/// y [..., out] = x [..., in] W^T + b, where the features of y are sharded like the features of x, as between blocks.
/// Use it only at the ends of a model: all ranks that hold the same hidden states compute the same products. An Expand
/// and a Contract divide their products among those ranks. Adapters alone wrap its product (Parameter::between_blocks).
class Dense {
 public:
  virtual ~Dense() = default;
  virtual at::Tensor forward(const at::Tensor& x) = 0;
  /// As Expand::forward() of pictures, from features between blocks to features between blocks.
  virtual at::Tensor forward(const at::Tensor& x, const Pictures& pictures) = 0;
};

/// Options of a linear layer.
struct LinearOptions {
  bool bias = true;
  double deviation = 0.02;  ///< standard deviation of the initial weight; biases start at zero
  /// Segments of the split dimension (out of an Expand, in of a Contract or a Dense); empty = one segment
  std::vector<tensor::Segment> segments{};
  /// Further dimensions of the weight of a layer, [out, in, taps...]: those of the kernel of a convolution. Only
  /// adapters wrap their products (nn/low_rank_convolution.h), not fp8 or packed weights. Empty = none
  std::vector<int64_t> taps{};

  /// Returns the sizes of the weight.
  std::vector<int64_t> weight_sizes(int64_t out, int64_t in) const;
};

/// Returns the sum over taps of product(x[tap], weight of that tap, bias, which is undefined for all taps but the
/// first). `weight` [out, in, taps...]. Errors ("model"): another number of tensors than taps; no taps.
at::Tensor sum_of_taps(
    const std::vector<at::Tensor>& x, const at::Tensor& weight, const at::Tensor& bias,
    const std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias)>& product);

}  // namespace colossal::nn
