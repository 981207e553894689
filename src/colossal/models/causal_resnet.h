// A ResNet of clips: two norms and causal convolutions beside a shortcut, as the autoencoders of clips have it.
//
//   const CausalResnet resnet("blocks.0", 64, 128, {.groups = {32, 1e-6}, .replicates = true}, make);
//   y = resnet.forward(x, {32, 48}, step);                            // [B, T, 32 * 48, 64] -> [B, T, 32 * 48, 128]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/clips.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {

/// What all layers of an autoencoder of clips share.
struct CausalStyle {
  ops::NormGroups groups{};
  bool replicates = false;  ///< CausalOptions::replicates
  bool bias = true;         ///< of the convolutions of ResNets

  /// Returns the options of a convolution whose kernel has `side` frames, rows and columns, with LibTorch's deviation
  /// of initial weights.
  nn::CausalOptions kernel(int64_t in, int64_t side) const;
};

/// Parameters `name`.norm_1, conv_1, norm_2, conv_2 and, between other features, shortcut.
class CausalResnet {
 public:
  CausalResnet(const std::string& name, int64_t in, int64_t out, const CausalStyle& style, nn::Layers& make);
  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) const;

 private:
  std::unique_ptr<nn::ClipNorm> norm_1_;
  std::unique_ptr<nn::ClipConvolution> conv_1_;
  std::unique_ptr<nn::ClipNorm> norm_2_;
  std::unique_ptr<nn::ClipConvolution> conv_2_, shortcut_;  // shortcut_: null = the features stay
};

/// Refuses layouts in which a rank does not have whole clips and all features. Errors ("parallel"): such a layout.
void check_whole_clips(const char* family, int64_t features, nn::Layers& layers);

}  // namespace colossal::models
