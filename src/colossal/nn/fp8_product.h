// Linear layers whose operands have 8 bits: values in e4m3, gradients in e5m2, scaled a tensor at a time (Micikevicius
// et al. 2022, arXiv:2209.05433).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/ops/rank_reduction.h"

namespace colossal::nn {

/// How the scale of an operand follows from largest magnitudes ("amax"): ops::scale_of(amax, format, margin).
struct Fp8Recipe {
  enum class Scaling {
    Current,  ///< the operand's own amax. No state
    Delayed,  ///< the largest amax of earlier steps, so that hardware need not read an operand twice; its own until
              ///< there are some. What grew since saturates
  };
  Scaling scaling = Scaling::Current;
  int64_t history = 16;  ///< Delayed: steps that count
  double margin = 0;     ///< powers of two left free above the amax
  /// Scales rounded down to powers of two: dequantised operands are then exact in bf16, too, which otherwise rounds
  /// them once more.
  bool power_of_two = true;
};

/// The linear layers of a model that compute in fp8, and their state. Each is a Product around that of the layout:
///
///   y = q(x) q(W)t + bias    dx = q(dy) q(W)    dW = q(dy)t q(x)
///
/// where q(t) is the dequantised codes of t: e4m3 of x and W, e5m2 of dy.
///
/// Numbers:       the products are made of dequantised operands in the dtype of the model; on a device that multiplies
///                8-bit numbers of the codes themselves, where the product inside is a DirectProduct, the dtype is
///                fp32 or bf16 and the sizes fit (ops/scaled_product.h). Both agree up to the order of a sum: a product
///                of two such numbers has at most 8 significant bits, so it is exact in fp32, in which sums are made.
///                Bias and its gradient, results and sums over ranks are not quantised. Scales are of a rank's own
///                block; what ranks send is already dequantised, so all see one value.
/// Memory:        for backward the codes of x, 1 byte an element, and the weight itself, whose codes are made again.
///                What the product inside keeps other than the blocks it was given (gathered ones) is kept as it is.
/// Communication: that of the product inside.
/// Cost:          three passes more over each operand, each time it is used; with products of codes in place of one of
///                them a copy, a byte an element, of W and x for dx and dW, and of dy for dW.
/// Thread safety: none: the ranks of one process have one each.
class Fp8Layers {
 public:
  /// The state of one layer.
  struct State {
    std::string name;        ///< "<weight>.fp8_history"
    at::Tensor history;      ///< [3, recipe.history] fp32: amax of x, W and dy in earlier steps, latest first; 0: none.
                             ///< The value of the buffer of that name
    tensor::ShardSpec spec;  ///< of `history`: whole on all ranks of the stages that use the weight
    at::Tensor now;          ///< [3]: the same of the step under way
  };

  /// Errors ("precision"): a history shorter than one step.
  explicit Fp8Layers(const Fp8Recipe& recipe);

  /// A wrapper for Parameters::Options::products: `product` in fp8, or `product` itself of weights that are no hidden
  /// matrices. It shares the layer's state with this object, and products of one weight (Parameters::Redeclaration)
  /// share one. With delayed scaling the history is a buffer of `parameters`, BufferUse::Training.
  std::shared_ptr<const Product> wrap(std::shared_ptr<const Product> product, const Parameter& weight,
                                      Parameters& parameters);

  /// After each step: what it saw becomes history, what was not finite does not count. Scales change here alone, so
  /// micro-batches, recomputation and deferred gradients of a step all quantise alike. Passes without grad mode leave
  /// no trace.
  ///
  /// `ranks`: those that hold the same layers, all but those of other stages. With it the state is the same on all of
  /// them, and that of one process from the second step on: a checkpoint may keep one copy, replicated.
  /// Communication: one maximum over 3 values a layer, where scaling is delayed.
  void end_step(ops::RankReduction& ranks);

  /// States of the layers that this rank computes, in the order of wrap(). Empty with current scaling.
  const std::deque<std::shared_ptr<State>>& states() const { return states_; }

 private:
  Fp8Recipe recipe_;
  std::deque<std::shared_ptr<State>> states_;
};

}  // namespace colossal::nn
