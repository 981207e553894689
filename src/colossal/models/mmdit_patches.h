// The patches of the picture or clip that an MMDiT reads, as its tokens (models/families/mmdit.h).
//
//   const MmditPatches patches(shape, layers);
//   states[kMmditHidden] = patches.forward(batch, step);                // [B, patches or this rank's, H]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "colossal/models/families/mmdit.h"
#include "colossal/models/mmdit_blocks.h"
#include "colossal/nn/features.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/vector.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The layer that reads given frames of a clip: for each patch a mask, and the frame as it is. It starts at 0.
class MmditGivenFrames {
 public:
  /// Makes the parameters `given.weight` and `given.bias`.
  MmditGivenFrames(const ModelShape& shape, nn::Layers& layers);
  /// Returns what all patches read, [b, patches, (C + 1) patch^2], from fields of a batch. Without the field `given` it
  /// is 0. `clips` [b, C, frames, height, width]: this rank's rows of the clips.
  /// Errors ("data"): `given` without the field `shown`.
  at::Tensor read(const at::Tensor& clips, const nn::ForwardContext& step) const;
  /// Returns the states [b, T, H] of patches that read() returned.
  at::Tensor forward(const at::Tensor& patches) const;

 private:
  MmditSizes own_;
  nn::FieldPart part_;
  std::unique_ptr<nn::Vector> weight_, bias_;
};

/// The patches of the noised picture or clip. A model with a table of positions adds those of its middle.
class MmditPatches {
 public:
  /// Makes the parameters `patches.weight` and `patches.bias`, the buffer `positions` of a model with a table, and the
  /// parameters of MmditGivenFrames of a model of clips.
  MmditPatches(const ModelShape& shape, nn::Layers& layers);
  /// Returns the states of this rank's tokens. Errors ("model"): more patches than the table has.
  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const;

 private:
  void make_table(int64_t hidden, nn::Parameters& parameters);
  at::Tensor middle(const MmditGrid& grid) const;

  MmditSizes own_;
  nn::FieldPart part_;
  nn::OwnTokens tokens_;
  std::shared_ptr<const nn::Features> features_;
  at::ScalarType dtype_;
  std::unique_ptr<nn::Vector> weight_, bias_;
  at::Tensor table_;                         // [table * table, H]; undefined = the model has none
  std::unique_ptr<MmditGivenFrames> given_;  // null = the model draws pictures
};

}  // namespace colossal::models
