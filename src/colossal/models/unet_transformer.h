// A layer of a transformer within a UNet: attention among the pixels of a level, attention to the text, with an
// IP-adapter also to the tokens of a picture, and a feed-forward layer. The first layer begins with a projection of the
// pixels, the last one ends with another.
//
//   const UnetTransformer layer(shape, part, "blocks.7", layers);
//   states[part.writes] = layer.forward(states, step);
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/model.h"
#include "colossal/models/unet_parts.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"

namespace colossal::models {

/// The layer that a part of the kind Transformer names (models/unet_parts.h). Its GELU is exact, the gate comes first.
class UnetTransformer {
 public:
  UnetTransformer(const ModelShape& shape, const UnetPart& part, const std::string& name, nn::Layers& make);

  /// Returns the states that forward() reads: the pixels before the first layer and behind the last one, what the
  /// layers pass on in between, the text, and with an IP-adapter the tokens of the picture.
  std::vector<int> reads() const;
  /// Returns what the layer passes on, or of the last one the pixels, [B, pixels, features].
  at::Tensor forward(const States& states, const nn::ForwardContext& step) const;

 private:
  struct Branch {
    at::Tensor after(const nn::Heads& heads, const nn::ForwardContext& step) const;
    std::unique_ptr<nn::Norm> norm;
    std::unique_ptr<nn::Attention> attention;
    std::unique_ptr<nn::OutputProjection> out;
  };
  void make_attention(const UnetSizes& own, const std::string& name, nn::Layers& make);
  void make_image_attention(const ModelShape& shape, const std::string& name, nn::Layers& make);
  /// Returns the attention of the queries `heads` to the tokens of the picture.
  at::Tensor of_image(nn::Heads heads, const States& states) const;
  at::Tensor projected(nn::Dense& layer, const at::Tensor& x, const nn::ForwardContext& step) const;

  UnetPart part_;
  bool is_linear_;                       // the projections are linear layers
  std::unique_ptr<nn::GroupNorm> norm_;  // null but in the first layer
  std::unique_ptr<nn::Dense> proj_in_;   // so is this one
  Branch self_, cross_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::CrossProjection> to_text_;
  std::unique_ptr<nn::Expand> to_image_;  // keys and values of the picture; null without an IP-adapter
  int image_state_ = -1;
  int64_t head_dim_ = 0;
  double image_scale_ = 1;
  std::unique_ptr<nn::Norm> mlp_norm_;
  std::unique_ptr<nn::Expand> gate_up_;
  std::unique_ptr<nn::Contract> down_;
  std::unique_ptr<nn::Dense> proj_out_;  // null but in the last layer
};

}  // namespace colossal::models
