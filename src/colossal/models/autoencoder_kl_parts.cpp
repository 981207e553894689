#include "colossal/models/autoencoder_kl_parts.h"

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <vector>

#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/norm.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {

nn::LinearOptions autoencoder_kl_kernel(int64_t in, int64_t side) {
  return {.deviation = 1 / std::sqrt(3.0 * static_cast<double>(in * side * side)), .taps = {side, side}};
}

at::Tensor autoencoder_kl_moments(const at::Tensor& x) {
  constexpr double kLeastLogVariance = -30, kMostLogVariance = 20;
  const std::vector<at::Tensor> both = x.to(at::promote_types(x.scalar_type(), at::kFloat)).chunk(2, -1);
  // LibTorch runs the gradient of clamp() on values only, not on sizes.
  const at::Tensor low = both[1].masked_fill(both[1] < kLeastLogVariance, kLeastLogVariance);
  return at::cat({both[0], low.masked_fill(low > kMostLogVariance, kMostLogVariance)}, -1);
}

namespace autoencoder_kl_parts {  // a namespace of its own, because files of a layer may be compiled as one

using Kind = AutoencoderKlBlock::Kind;

nn::Pictures same(const ops::PictureSize& size) { return {size, ops::Window::same(3)}; }

class PictureResnet {
 public:
  PictureResnet(const AutoencoderKlBlock& b, const std::string& name, const ops::NormGroups& groups, nn::Layers& make)
      : norm_1_(make.group_norm(name + ".norm_1", b.in, groups, nn::Place::Outside)),
        conv_1_(make.expand(name + ".conv_1", b.in, b.out, autoencoder_kl_kernel(b.in, 3))),
        norm_2_(make.group_norm(name + ".norm_2", b.out, groups, nn::Place::Inside)),
        conv_2_(make.contract(name + ".conv_2", b.out, b.out, autoencoder_kl_kernel(b.out, 3))),
        shortcut_(b.in == b.out ? nullptr
                                : make.dense(name + ".shortcut", b.in, b.out, autoencoder_kl_kernel(b.in, 1))) {}

  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) const {
    const nn::Inside inside = conv_1_->forward(at::silu(norm_1_->forward(x)), same(size));
    const at::Tensor y = conv_2_->forward(nn::Inside{norm_2_->forward(inside.tensor)}.map(at::silu, step), same(size));
    return (shortcut_ ? shortcut_->forward(x, {size, {}}) : x) + y;
  }

 private:
  std::unique_ptr<nn::GroupNorm> norm_1_;
  std::unique_ptr<nn::Expand> conv_1_;
  std::unique_ptr<nn::GroupNorm> norm_2_;
  std::unique_ptr<nn::Contract> conv_2_;
  std::unique_ptr<nn::Dense> shortcut_;  // null = the features stay
};

/// Attention among all cells, with one head of all features.
class CellAttention {
 public:
  CellAttention(const AutoencoderKlBlock& b, const std::string& name, const ops::NormGroups& groups, nn::Layers& make)
      : CellAttention({b.in, 1, 1, b.in}, autoencoder_kl_kernel(b.in, 1).deviation, name, groups, make) {}

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const nn::Heads heads = qkv_->forward(norm_->forward(x), step);
    return x + out_->forward(attention_->forward(heads, step), step);
  }

 private:
  CellAttention(const nn::AttentionShape& shape, double deviation, const std::string& name,
                const ops::NormGroups& groups, nn::Layers& make)
      : norm_(make.group_norm(name + ".norm", shape.hidden, groups, nn::Place::Outside)),
        qkv_(make.heads(name + ".attention.qkv", shape, {.deviation = deviation})),
        attention_(make.attention(name + ".attention", shape, {.causal = false})),
        out_(make.from_heads(name + ".attention.out", shape, {.deviation = deviation})) {}

  std::unique_ptr<nn::GroupNorm> norm_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::OutputProjection> out_;
};

/// The end of the encoder, before the limits of moments.
class PictureMoments {
 public:
  PictureMoments(const AutoencoderKlSizes& own, const std::string& name, const ops::NormGroups& groups,
                 nn::Layers& make)
      : norm_(make.group_norm(name + ".norm", own.levels.back(), groups, nn::Place::Outside)),
        conv_(make.dense(name + ".conv", own.levels.back(), 2 * own.latent_channels,
                         autoencoder_kl_kernel(own.levels.back(), 3))) {
    const int64_t both = 2 * own.latent_channels;
    if (own.quant_conv) quant_ = make.dense(name + ".quant", both, both, autoencoder_kl_kernel(both, 1));
  }

  at::Tensor forward(const at::Tensor& hidden, const ops::PictureSize& size) const {
    const at::Tensor x = conv_->forward(at::silu(norm_->forward(hidden)), same(size));
    return quant_ ? quant_->forward(x, {size, {}}) : x;
  }

 private:
  std::unique_ptr<nn::GroupNorm> norm_;
  std::unique_ptr<nn::Dense> conv_, quant_;  // quant_: null = none
};

/// The beginning of the decoder.
class PictureLatent {
 public:
  PictureLatent(const AutoencoderKlSizes& own, const std::string& name, nn::Layers& make)
      : dtype_(make.parameters().options().dtype) {
    const int64_t channels = own.latent_channels;
    if (own.post_quant_conv)
      quant_ = make.dense(name + ".quant", channels, channels, autoencoder_kl_kernel(channels, 1));
    conv_ = make.dense(name + ".conv", channels, own.levels.back(), autoencoder_kl_kernel(channels, 3));
  }

  at::Tensor forward(const at::Tensor& latent, const ops::PictureSize& size) const {
    const at::Tensor x = latent.to(dtype_);
    return conv_->forward(quant_ ? quant_->forward(x, {size, {}}) : x, same(size));
  }

 private:
  at::ScalarType dtype_;
  std::unique_ptr<nn::Dense> quant_, conv_;  // quant_: null = none
};

/// Returns the function of a convolution after the sides have been halved or doubled.
std::function<at::Tensor(const at::Tensor& x, const ops::PictureSize& size)> resampling(const AutoencoderKlBlock& b,
                                                                                        const std::string& name,
                                                                                        nn::Layers& make) {
  const std::shared_ptr<nn::Dense> conv = make.dense(name + ".conv", b.in, b.out, autoencoder_kl_kernel(b.in, 3));
  if (b.kind == Kind::Down)
    return [conv](const at::Tensor& x, const ops::PictureSize& size) {
      return conv->forward(x, {size, {.stride = 2, .bottom = 1, .right = 1}});
    };
  return [conv](const at::Tensor& x, const ops::PictureSize& size) {
    const ops::PictureSize twice{2 * size.height, 2 * size.width};
    return conv->forward(nn::as_pixels(ops::enlarged(nn::as_pictures(x, size), twice)), same(twice));
  };
}

}  // namespace autoencoder_kl_parts

AutoencoderKlLayer autoencoder_kl_layer(const AutoencoderKlSizes& own, const AutoencoderKlBlock& b,
                                        const std::string& name, nn::Layers& make) {
  using autoencoder_kl_parts::Kind;
  const ops::NormGroups groups{own.groups, kAutoencoderKlEpsilon};
  switch (b.kind) {
    case Kind::Resnet: {
      const auto layer = std::make_shared<const autoencoder_kl_parts::PictureResnet>(b, name, groups, make);
      return [layer](const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) {
        return layer->forward(x, size, step);
      };
    }
    case Kind::Attention: {
      const auto layer = std::make_shared<const autoencoder_kl_parts::CellAttention>(b, name, groups, make);
      return [layer](const at::Tensor& x, const ops::PictureSize&, const nn::ForwardContext& step) {
        return layer->forward(x, step);
      };
    }
    case Kind::Moments: {
      const auto layer = std::make_shared<const autoencoder_kl_parts::PictureMoments>(own, name, groups, make);
      return [layer](const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext&) {
        return layer->forward(x, size);
      };
    }
    case Kind::Latent: {
      const auto layer = std::make_shared<const autoencoder_kl_parts::PictureLatent>(own, name, make);
      return [layer](const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext&) {
        return layer->forward(x, size);
      };
    }
    default: {
      const auto layer = autoencoder_kl_parts::resampling(b, name, make);
      return [layer](const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext&) {
        return layer(x, size);
      };
    }
  }
}

at::Tensor autoencoder_kl_latent(const at::Tensor& moments, const nn::FieldPart& part, const nn::ForwardContext& step) {
  const std::vector<at::Tensor> both = moments.chunk(2, -1);
  const at::Tensor &mean = both[0], &log_variance = both[1];
  if (!step.batch->find("noise").defined()) return mean;
  const at::Tensor noise = part(step.batch->field("noise"), step).flatten(2).transpose(1, 2).to(mean.scalar_type());
  return mean + at::exp(log_variance * 0.5) * noise;
}

}  // namespace colossal::models
