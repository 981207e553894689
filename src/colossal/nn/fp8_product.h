// Linear layers with 8-bit operands: values in e4m3, gradients in e5m2, with one scale per tensor (Micikevicius et al.
// 2022, arXiv:2209.05433).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/ops/rank_reduction.h"

namespace colossal::nn {

/// How the scale of an operand is computed from its largest magnitude ("amax"): ops::scale_of(amax, format, margin).
struct Fp8Recipe {
  enum class Scaling {
    Current,  ///< amax of the operand itself; no state
    /// Largest amax of earlier steps, so that the hardware need not read an operand twice; the operand's own amax until
    /// there are some. Values above the scale's range saturate
    Delayed,
  };
  Scaling scaling = Scaling::Current;
  int64_t history = 16;  ///< number of earlier steps that Delayed considers
  double margin = 0;     ///< headroom above the amax, in powers of two
  /// True = scales are rounded down to powers of two. Dequantised operands are then exact in bf16, too; other scales
  /// would make bf16 round them a second time.
  bool power_of_two = true;
};

/// The linear layers of a model that compute in fp8, and their state. Each is a Product around the product of the
/// layout:
///
///   y = q(x) q(W)t + bias    dx = q(dy) q(W)    dW = q(dy)t q(x)
///
/// where q(t) is the dequantised value of t quantized to e4m3 (x and W) or e5m2 (dy).
///
/// Numbers:       the products are computed from dequantised operands in the dtype of the model. They are computed from
///                the quantized values directly if the device multiplies 8-bit numbers, the product inside is a
///                DirectProduct, the dtype is fp32 or bf16, and the sizes fit (ops/products/fp8.h). Both
///                agree up to the order of a sum: a product of two such numbers has at most 8 significant bits, so it
///                is exact in fp32, in which sums are made. The bias and its gradient, results and sums over ranks are
///                not quantised. Each rank scales its own block. Ranks send dequantised values, so all of them see the
///                same value.
/// Memory:        for backward the quantized values of x, 1 byte per element, and the weight itself, which is quantized
///                again. Tensors that the product inside keeps instead of the blocks it was given (gathered ones) are
///                kept unchanged.
/// Communication: only the product inside communicates.
/// Cost:          three more passes over each operand, each time it is used. Direct products of quantized values
///                replace one of these by a copy, one byte per element, of W and x for dx and dW, and of dy for dW.
/// Thread safety: none; each rank of a process has its own object.
class Fp8Products {
 public:
  /// The state of one layer, or of all experts of a stack (Parameter::stack), used by delayed scaling. Shapes have a
  /// first dimension [experts] for a stack, with all experts on every rank.
  struct State {
    std::string name;  ///< "<weight>.fp8_history", "<stack>.fp8_history"
    /// [3, recipe.history] fp32: amax of x, W and dy in earlier steps, latest first; 0 = none. It is the value of the
    /// buffer of that name
    at::Tensor history;
    tensor::ShardSpec spec;  ///< spec of `history`: whole on all ranks of the stages that use the weight
    at::Tensor now;          ///< [3]: amax of x, W and dy in the current step
  };

  /// Errors ("precision"): a history shorter than one step.
  explicit Fp8Products(const Fp8Recipe& recipe);

  /// A wrapper for Parameters::Options::products. Returns `product` in fp8, or `product` itself if the weight is not a
  /// hidden matrix. It shares the layer's state with this object. Products of one weight (Parameters::Redeclaration)
  /// share one state. With delayed scaling the history is a buffer of `parameters`, BufferUse::Training.
  std::shared_ptr<const Product> wrap(std::shared_ptr<const Product> product, const Parameter& weight,
                                      Parameters& parameters);

  /// Ends a step: its amax values become history, except those that are not finite. A layer that computed nothing, such
  /// as an expert without tokens on all ranks, keeps its history. Scales change only here, so micro-batches,
  /// recomputation and deferred gradients of a step all quantise in the same way. Passes without grad mode are not
  /// recorded.
  ///
  /// `ranks`: the ranks that hold the same layers, which are all ranks except the ranks of other stages. It makes the
  ///          state the same on all of them, also that of experts that only some of them hold. From the second step on
  ///          it is also the state of one process, so a checkpoint may store one copy as replicated.
  /// Communication: one maximum over 3 values per layer and expert, if scaling is delayed.
  /// Cost:          a few operators for each layer or stack, whatever the number of experts.
  void end_step(ops::RankReduction& ranks);

  /// The states of the layers and stacks that this rank's stage computes, in the order of wrap(). Empty with current
  /// scaling.
  const std::deque<std::shared_ptr<State>>& states() const { return states_; }

 private:
  Fp8Recipe recipe_;
  std::deque<std::shared_ptr<State>> states_;
  std::set<std::string> elsewhere_;  // histories that were declared for other stages
};

}  // namespace colossal::nn
