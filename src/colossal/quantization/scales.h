// Per-feature factors: features are divided by them in front of linear layers, and the layers' weights are multiplied
// by them. This moves the difficulty of rounding from one side to the other and changes nothing else.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/parameter.h"
#include "colossal/ops/products/group_codes.h"
#include "colossal/quantization/layer_inputs.h"

namespace colossal::quantization {

/// Returns the factors of AWQ (Lin and others, arXiv:2306.00978): fp64 [in], mean |x|^a. The exponent a is the one of
/// 0, 1/20 .. 19/20 for which rounding weight * scales leaves the smallest output_error, summed over all `weights`
/// [out, in] that read these inputs. The error is never larger than without factors, because a = 0 (scales of 1) is
/// among the candidates.
at::Tensor awq_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs,
                      const ops::RoundingOptions& options);

/// Returns the factors of SmoothQuant (Xiao and others, arXiv:2211.10438): fp64 [in], max |x|^alpha / max |w|^(1 -
/// alpha) of each feature, or 1 if either is 0.
at::Tensor smoothing_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs, double alpha = 0.5);

// Folding of the factors into the blocks of models/transformer_block.h, without a change of what they compute.

/// An operator that produces features, and the linear layers that are their only readers.
struct Fold {
  std::string name;                    ///< readable name of the operator that produces the features: "blocks.0.norm_1"
  std::vector<std::string> consumers;  ///< names of the layers' weights [out, in]
  bool is_norm = true;
  /// Divides the features by `scales` [in] at the operator that produces them.
  std::function<void(const at::Tensor& scales)> divide;
};

/// Returns the folds of a block, found by the names of its parameters. A norm is in front of q, k and v, or of the
/// feed-forward layer, or of both if a block has one norm. `up` is in front of `down` in a gated layer. v is in front
/// of the output of attention, if each head has a v of its own. Parameters do not say whether norms are before branches
/// or after sums, so the caller must test each fold with changes_nothing().
std::vector<Fold> folds_of(const models::ModelShape& shape, nn::Parameters& parameters, int64_t block);

/// Divides the features by `scales`, and multiplies the weights that read them by `scales`.
void apply(const Fold& fold, nn::Parameters& parameters, const at::Tensor& scales);

/// Returns true if `output` stays the same when the fold is applied with scales of 1, 2 and 4, which no format rounds.
/// The norm of the difference may be 1e-3 of the output's norm. The scales are taken back afterwards.
bool changes_nothing(const Fold& fold, nn::Parameters& parameters, const std::function<at::Tensor()>& output);

}  // namespace colossal::quantization
