#include "colossal/models/causal_resnet.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/nn/features.h"

namespace colossal::models {

nn::CausalOptions CausalStyle::kernel(int64_t in, int64_t side) const {
  return {.kernel = {side, side, side},
          .replicates = replicates,
          .deviation = 1 / std::sqrt(3.0 * static_cast<double>(in * side * side * side))};
}

namespace {

nn::CausalOptions within_resnet(const CausalStyle& style, int64_t in, int64_t side) {
  nn::CausalOptions options = style.kernel(in, side);
  options.bias = style.bias;
  return options;
}

}  // namespace

CausalResnet::CausalResnet(const std::string& name, int64_t in, int64_t out, const CausalStyle& style, nn::Layers& make)
    : norm_1_(make.clip_norm(name + ".norm_1", in, style.groups)),
      conv_1_(make.causal_convolution(name + ".conv_1", in, out, within_resnet(style, in, 3))),
      norm_2_(make.clip_norm(name + ".norm_2", out, style.groups)),
      conv_2_(make.causal_convolution(name + ".conv_2", out, out, within_resnet(style, out, 3))),
      shortcut_(in == out ? nullptr
                          : make.causal_convolution(name + ".shortcut", in, out, within_resnet(style, in, 1))) {}

at::Tensor CausalResnet::forward(const at::Tensor& x, const ops::PictureSize& size,
                                 const nn::ForwardContext& step) const {
  const at::Tensor inside = conv_1_->forward(at::silu(norm_1_->forward(x, step)), size, step);
  const at::Tensor y = conv_2_->forward(at::silu(norm_2_->forward(inside, step)), size, step);
  return (shortcut_ ? shortcut_->forward(x, size, step) : x) + y;
}

void check_whole_clips(const char* family, int64_t features, nn::Layers& layers) {
  const bool is_split = layers.splits_tokens() || layers.batch_parts() > 1 ||
                        layers.features(features, nn::Place::Outside)->is_split() ||
                        layers.features(features, nn::Place::Inside)->is_split();
  require(!is_split, "parallel", "layouts of ", family,
          " must give each rank whole clips and all features: got one that splits them; set parallel.tensor.size = 1 "
          "and parallel.sequence.size = 1, and use data, zero or pipeline");
}

}  // namespace colossal::models
