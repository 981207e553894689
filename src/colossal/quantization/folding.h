// Where the blocks of models/transformer_block.h can take up factors of features (scales.h) without changing what they
// compute.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/parameter.h"

namespace colossal::quantization {

/// A place where features are made, and the linear layers that alone read them.
struct Fold {
  std::string name;                    ///< of what makes them, as people read it: "blocks.0.norm_1"
  std::vector<std::string> consumers;  ///< names of their weights [out, in]
  bool is_norm = true;
  /// Divides the features by `scales` [in] where they are made.
  std::function<void(const at::Tensor& scales)> divide;
};

/// Returns the folds of a block, found by the names of its parameters. A norm is in front of q, k and v, or of the
/// feed-forward layer, or of both if a block has one norm. In a gated layer `up` is in front of `down`. v is in front
/// of the output of attention, if each head has a v of its own. Only a trial shows whether folds hold
/// (changes_nothing): parameters do not say whether norms are before branches or after sums.
std::vector<Fold> folds_of(const models::ModelShape& shape, nn::Parameters& parameters, int64_t block);

/// Divides by `scales` where the features are made and multiplies the weights that read them.
void apply(const Fold& fold, nn::Parameters& parameters, const at::Tensor& scales);

/// Whether `output` stays the same under scales of 1, 2 and 4, which no format rounds; takes them back afterwards.
bool changes_nothing(const Fold& fold, nn::Parameters& parameters, const std::function<at::Tensor()>& output);

}  // namespace colossal::quantization
