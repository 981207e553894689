#include "colossal/nn/patches.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/vector.h"

namespace colossal::nn {

PatchShape patches_over(PatchShape s) {
  for (int64_t* side : {&s.height, &s.width}) *side = (*side + s.patch - 1) / s.patch * s.patch;
  return s;
}

at::Tensor cut_patches(const at::Tensor& images, const PatchShape& s) {
  require(s.patch > 0 && s.height % s.patch == 0 && s.width % s.patch == 0, "model",
          "the sides of an image must be divisible by the patch: got ", s.height, " x ", s.width, ", patch ", s.patch);
  require(images.dim() == 4 && images.size(1) == s.channels && images.size(2) == s.height && images.size(3) == s.width,
          "model", "images must be [B, ", s.channels, ", ", s.height, ", ", s.width, "]: got ", images.sizes());
  return images.view({images.size(0), s.channels, s.rows(), s.patch, s.columns(), s.patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({images.size(0), s.count(), s.channels * s.patch * s.patch});
}

at::Tensor join_patches(const at::Tensor& patches, const PatchShape& s) {
  const int64_t size = s.patch * s.patch * s.channels;
  require(patches.dim() == 3 && patches.size(1) == s.count() && patches.size(2) == size, "model",
          "patches must be [B, ", s.count(), ", ", size, "]: got ", patches.sizes());
  return patches.reshape({patches.size(0), s.rows(), s.columns(), s.patch, s.patch, s.channels})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({patches.size(0), s.channels, s.height, s.width});
}

namespace {

class FeaturePatches final : public PatchEmbedding {
 public:
  FeaturePatches(Layers& make, const std::string& name, const PatchShape& shape, int64_t hidden, double deviation,
                 const std::string& class_token, double class_deviation)
      : tokens_(make.own_tokens()),
        shape_(shape),
        weight_(make.vector(name + ".weight", {hidden, shape.channels, shape.patch, shape.patch},
                            {.init = Init::normal(deviation), .decay = true})),
        bias_(make.vector(name + ".bias", {hidden}, {})),
        first_(shape.class_tokens == 0
                   ? nullptr
                   : make.vector(class_token + ".weight", {shape.class_tokens, hidden},
                                 {.features = 1, .init = Init::normal(class_deviation), .decay = true})) {}

  at::Tensor forward(const at::Tensor& images, const ForwardContext& step) override {
    const Tokens tokens = tokens_(step);
    const at::Tensor patches = cut_patches(tokens.rows_of(images), shape_), w = weight_->value().flatten(1),
                     b = bias_->value();
    if (!first_) return nn::linear(tokens.sequence.of(patches, 1, "sequence"), w, b);
    const at::Tensor class_tokens = first_->value();
    if (tokens.sequence.is_all())
      return at::cat({class_tokens.expand({patches.size(0), -1, -1}), nn::linear(patches, w, b)}, 1);
    // A rank uses all parameters, whatever tokens it has, because ranks that share them wait for its gradients.
    const int64_t in_front = class_tokens.size(0);
    const auto own = [&](const at::Tensor& all) { return tokens.sequence.of(all, 1, "sequence"); };
    const at::Tensor behind = own(at::constant_pad_nd(patches, {0, 0, in_front, 0}));
    const at::Tensor before = own(at::constant_pad_nd(class_tokens, {0, 0, 0, patches.size(1)}).unsqueeze(0));
    at::Tensor is_patch = at::ones({1, in_front + patches.size(1), 1}, behind.options());
    is_patch.narrow(1, 0, in_front).zero_();
    return nn::linear(behind, w, b) * own(is_patch) + before;
  }

 private:
  OwnTokens tokens_;
  PatchShape shape_;
  std::unique_ptr<Vector> weight_, bias_, first_;  // first_: null without class tokens
};

}  // namespace

std::unique_ptr<PatchEmbedding> Layers::patch_embedding(const std::string& name, const PatchShape& shape,
                                                        int64_t hidden, double deviation,
                                                        const std::string& class_token, double class_deviation) {
  return std::make_unique<FeaturePatches>(*this, name, shape, hidden, deviation, class_token, class_deviation);
}

}  // namespace colossal::nn
