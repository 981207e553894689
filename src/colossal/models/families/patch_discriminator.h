// The discriminator of patches that trains together with an autoencoder (PatchGAN, Isola et al. 2016, arXiv:1611.07004;
// as NLayerDiscriminator of taming-transformers, arXiv:2012.09841): a score for each patch of a picture, high for
// pictures of the data and low for reconstructions. Its own keys.
//
//   const ModelShape shape = built_in().resolve({.name = "patch-discriminator"});
//   const at::Tensor scores = end[0];                              // [B, patches, 1] at the end of the model
//
// Convolutions of 4 x 4 with padding 1 and a leaky ReLU of slope 0.2: the first and those of all blocks but the last
// have stride 2, and features double from one to the next, up to 8 times the first. The last block and the scores have
// stride 1. A GroupNorm follows the convolution of each block, where taming-transformers has a BatchNorm: statistics of
// a batch would depend on how its rows are divided among ranks and micro-batches. All convolutions have a bias.
//
// It reads the field `images` [B, channels, H, W], or clips [B, channels, T, H, W], whose frames it scores one by one:
// the patches of all frames, frame by frame. It runs with whole pictures on each rank: under data parallelism,
// ZeRO, pipelines and memory tiers. A run uses it as a further model (run::FurtherModel), so it names no objective.
#pragma once
#include <cstdint>

#include "colossal/base/fields.h"
#include "colossal/models/shape.h"
#include "colossal/ops/convolution.h"

namespace colossal::models {

/// The sizes of a discriminator of patches.
struct PatchDiscriminatorSizes {
  int64_t channels = 3;   ///< of a picture
  int64_t features = 64;  ///< of the first convolution
  int64_t depth = 3;      ///< blocks after it
  int64_t groups = 32;    ///< of each norm; 0 = no norms

  /// Returns the features after a block; -1 = after the first convolution.
  int64_t features_after(int64_t block) const;
  /// Returns the stride of the convolution of a block.
  int64_t stride(int64_t block) const { return block + 1 < depth ? 2 : 1; }
  /// Returns the size of hidden states after a block, in patches; -1 = after the first convolution.
  /// Errors ("model"): a picture that is too small to be scored.
  ops::PictureSize size_after(int64_t block, const ops::PictureSize& picture) const;
  void fields(Fields& f);
  bool operator==(const PatchDiscriminatorSizes&) const = default;
};

}  // namespace colossal::models
