// The blocks of a UNet as functions of its states, and what its embedding computes: the UNet has them, and so has a
// ControlNet (models/unet_control.h), which runs the same layers on states of its own.
//
//   const UnetLayer layer = make_unet_layer(shape, part, "blocks.7", layers);
//   states[part.writes] = layer.forward(states, step);               // reads the states layer.reads
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/models/number_embedder.h"
#include "colossal/models/unet_parts.h"
#include "colossal/models/vector_embedder.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// A part of a UNet with its layers.
struct UnetLayer {
  std::vector<int> reads{};  ///< the states of which forward() reads
  std::function<at::Tensor(const States& states, const nn::ForwardContext& step)> forward{};
};

/// Makes the layers of a part. Their parameters begin with `name` and a point.
UnetLayer make_unet_layer(const ModelShape& shape, const UnetPart& part, const std::string& name, nn::Layers& make);

/// Returns the options of a convolution with a square kernel.
nn::LinearOptions unet_kernel(int64_t side, int64_t in);
/// Returns those of a convolution at the end of a residual branch, or of the model. It starts at 0, as in Stable
/// Diffusion's own training: each block begins as the identity, so deep gradients begin small.
nn::LinearOptions unet_last_kernel(int64_t side);

/// Returns the number of features of the vector of a time.
int64_t unet_condition_features(const UnetSizes& own);

/// Returns the size of the pictures of a level, in a pass over the batch of `step`.
ops::PictureSize unet_size_of(const nn::ForwardContext& step, int64_t level);

/// Returns the pixels of a level as a state; `at` returns the features and the level of a block's result.
State unet_pixels_state(std::string name, std::function<std::pair<int64_t, int64_t>(int64_t block)> at);

/// The vector of the pooled text and the sizes of the picture that SDXL is told.
class UnetTextCondition {
 public:
  /// `prefix`: as of UnetConditioning.
  UnetTextCondition(const UnetSizes& own, const std::string& prefix, nn::Layers& make);
  /// Returns what is added to the vector of the time, as UnetConditioning::forward(). `pooled`: [B, UnetSizes::pooled],
  /// of this rank's rows.
  at::Tensor forward(const at::Tensor& pooled, const nn::ForwardContext& step) const;

 private:
  int64_t size_features_;
  nn::FieldPart part_;
  at::ScalarType dtype_;
  VectorEmbedder layers_;
};

/// The vector of a time and, of SDXL, of the pooled text and the sizes of the picture.
class UnetConditioning {
 public:
  /// `prefix`: what the names of its parameters begin with, such as "control.", or "". Without UnetSizes::pooled it is
  /// that of a time alone.
  UnetConditioning(const UnetSizes& own, const std::string& prefix, nn::Layers& make);
  /// Returns the vectors of the rows of a batch, [B, unet_condition_features()]; with ranks that split features, this
  /// rank's part.
  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const;

 private:
  nn::FieldPart part_;
  NumberEmbedder of_time_;
  std::optional<UnetTextCondition> more_;  // of a model with `pooled`
};

}  // namespace colossal::models
