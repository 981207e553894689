// The blocks of an STDiT3, which attend in turn among the places of each frame and among the frames of each place
// (models/families/stdit.h), and what its end shares with them.
//
//   const auto turns = std::make_shared<const ops::RotaryTable>(shape.head_dim, 10000.0);
//   for (int64_t i = 0; i < shape.layers; ++i) model.blocks.push_back(make_stdit_block(shape, i, turns, layers));
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/families/stdit.h"
#include "colossal/models/model.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/convolution.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {

/// The states: the clip [B, frames, places, H], the vectors that modulate every block [B, times, 6, H], the condition
/// of the end [B, times, H], and the caption [B, tokens, H].
constexpr int kStditHidden = 0, kStditModulation = 1, kStditCondition = 2, kStditText = 3;
/// Vectors of a block: shift, scale and gate of attention and of the feed-forward layer.
constexpr int64_t kStditVectors = 6;

/// Returns the patches that cover the frames of clips with this size.
nn::PatchShape stdit_patches(const StditSizes& own, const ops::PictureSize& size);
/// Returns the number of times of a row: that of its frames, and 0 if some frames may be given.
int64_t stdit_times(const nn::ForwardContext& step);
/// Returns `chosen` where the integers `mask` are not 0, and `other` where they are.
at::Tensor stdit_choose(const at::Tensor& mask, const at::Tensor& chosen, const at::Tensor& other);

/// Vectors that modulate frames: those of the condition plus a table of a block's own.
class StditFrameModulation {
 public:
  /// Makes the parameter `name`, [count, hidden].
  StditFrameModulation(const std::string& name, int64_t hidden, int64_t count, nn::Layers& layers);
  /// Takes [b, times, count or 1, h] and returns `count` tensors [b, frames or 1, 1, h]. Given frames have the vectors
  /// of the last time, which is 0.
  std::vector<at::Tensor> forward(const at::Tensor& of_times, const nn::ForwardContext& step) const;

 private:
  nn::FieldPart part_;
  std::unique_ptr<nn::Vector> table_;
};

/// Returns block `index` of a model of the shape: even ones attend in space, and odd ones in time, where `turns`
/// rotates queries and keys by their frame.
Block make_stdit_block(const ModelShape& shape, int64_t index, const std::shared_ptr<const ops::RotaryTable>& turns,
                       nn::Layers& layers);

}  // namespace colossal::models
