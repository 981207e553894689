#include "colossal/models/unet_blocks.h"

#include <ATen/ATen.h>

#include <memory>

#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/unet_transformer.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {

namespace unet {  // a namespace of its own, because every family has classes of these names

/// Hidden states whose features follow each other. Where ranks have parts of the features, those of the result are
/// other ones than a rank has of both.
///
/// Communication: where features are split, the sum of [B, pixels, features of both] over the ranks, in backward too.
class Joined {
 public:
  Joined(nn::Layers& make, int64_t first, int64_t second)
      : first_(make.features(first, nn::Place::Outside)),
        second_(make.features(second, nn::Place::Outside)),
        both_(make.features(first + second, nn::Place::Outside)) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) const {
    if (!both_->is_split()) return at::cat({x, skip}, -1);
    const auto in_place = [&](const at::Tensor& part, int64_t begin) {
      return at::constant_pad_nd(part, {begin, both_->size() - begin - part.size(-1)});
    };
    const at::Tensor whole =
        both_->sum(in_place(x, first_->here().first) + in_place(skip, first_->size() + second_->here().first));
    return whole.narrow(-1, both_->here().first, both_->here().size).contiguous();
  }

 private:
  std::shared_ptr<const nn::Features> first_, second_, both_;
};

/// Two convolutions with norms before them. The first one adds a vector of the time to each pixel.
class Resnet {
 public:
  Resnet(const ModelShape& s, const UnetPart& part, const std::string& name, nn::Layers& make) : part_(part) {
    const auto own = s.own.as<UnetSizes>();
    const ops::NormGroups groups{own.groups, s.norm_epsilon};
    const int64_t in = part.in + part.skip_features, out = part.out, time = unet_condition_features(own);
    if (part.joins()) joined_ = std::make_unique<Joined>(make, part.in, part.skip_features);
    norm_1_ = make.group_norm(name + ".norm_1", in, groups, nn::Place::Outside);
    conv_1_ = make.expand(name + ".conv_1", in, out, unet_kernel(3, in));
    time_ = make.expand(name + ".time", time, out, {.deviation = of_inputs(time)});
    norm_2_ = make.group_norm(name + ".norm_2", out, groups, nn::Place::Inside);
    conv_2_ = make.contract(name + ".conv_2", out, out, unet_last_kernel(3));
    if (in != out) shortcut_ = make.dense(name + ".shortcut", in, out, unet_kernel(1, in));
  }

  std::vector<int> reads() const {
    return part_.joins() ? std::vector<int>{part_.reads, kUnetCondition, part_.skip}
                         : std::vector<int>{part_.reads, kUnetCondition};
  }

  at::Tensor forward(const States& states, const nn::ForwardContext& step) const {
    const at::Tensor& own = states[part_.reads];
    // A skip has another reader. The gradients of this block meet in a view before they join that reader's, so that
    // their sum has the same order, and the same bits, if the block is recomputed.
    const at::Tensor x = part_.joins() ? joined_->forward(own, states[part_.skip]) : own.view_as(own);
    const ops::PictureSize size = unet_size_of(step, part_.level);
    const nn::Pictures pictures{size, ops::Window::same(3)};
    const nn::Inside inside = conv_1_->forward(at::silu(norm_1_->forward(x)), pictures);
    const nn::Inside time = time_->forward(at::silu(states[kUnetCondition]).unsqueeze(1));  // [B, 1, out]
    const nn::Inside normed{norm_2_->forward(inside.tensor + time.tensor)};
    const at::Tensor y = conv_2_->forward(normed.map(at::silu, step), pictures);
    return (shortcut_ ? shortcut_->forward(x, {size, ops::Window::same(1)}) : x) + y;
  }

 private:
  UnetPart part_;
  std::unique_ptr<Joined> joined_;  // null without a skip
  std::unique_ptr<nn::GroupNorm> norm_1_;
  std::unique_ptr<nn::Expand> conv_1_, time_;
  std::unique_ptr<nn::GroupNorm> norm_2_;
  std::unique_ptr<nn::Contract> conv_2_;
  std::unique_ptr<nn::Dense> shortcut_;  // null if its features stay as many
};

/// A convolution from a level to the next one, with a stride down, and of the enlarged picture up.
class Resampler {
 public:
  Resampler(const ModelShape&, const UnetPart& part, const std::string& name, nn::Layers& make)
      : part_(part), conv_(make.dense(name + ".conv", part.in, part.out, unet_kernel(3, part.in))) {}

  std::vector<int> reads() const { return {part_.reads}; }

  at::Tensor forward(const States& states, const nn::ForwardContext& step) const {
    const at::Tensor& x = states[part_.reads];
    const ops::PictureSize from = unet_size_of(step, part_.from), to = unet_size_of(step, part_.level);
    ops::Window window = ops::Window::same(3);
    if (part_.kind == UnetPart::Kind::Upsampler)
      return conv_->forward(nn::as_pixels(ops::enlarged(nn::as_pictures(x, from), to)), {to, window});
    window.stride = 2;
    return conv_->forward(x, {from, window});
  }

 private:
  UnetPart part_;
  std::unique_ptr<nn::Dense> conv_;
};

template <class Made>
UnetLayer made(const ModelShape& s, const UnetPart& part, const std::string& name, nn::Layers& make) {
  const auto layer = std::make_shared<const Made>(s, part, name, make);
  return {layer->reads(),
          [layer](const States& states, const nn::ForwardContext& step) { return layer->forward(states, step); }};
}

}  // namespace unet

nn::LinearOptions unet_kernel(int64_t side, int64_t in) {
  return {.deviation = of_inputs(in * side * side), .taps = {side, side}};
}

nn::LinearOptions unet_last_kernel(int64_t side) { return {.deviation = 0, .taps = {side, side}}; }

int64_t unet_condition_features(const UnetSizes& own) { return 4 * own.features.front(); }

ops::PictureSize unet_size_of(const nn::ForwardContext& step, int64_t level) {
  return unet_level_size(picture_size(*step.batch), level);
}

UnetLayer make_unet_layer(const ModelShape& s, const UnetPart& part, const std::string& name, nn::Layers& make) {
  switch (part.kind) {
    case UnetPart::Kind::Resnet:
      return unet::made<unet::Resnet>(s, part, name, make);
    case UnetPart::Kind::Transformer:
      return unet::made<UnetTransformer>(s, part, name, make);
    default:
      return unet::made<unet::Resampler>(s, part, name, make);
  }
}

State unet_pixels_state(std::string name, std::function<std::pair<int64_t, int64_t>(int64_t block)> at) {
  using tensor::Dim;
  return {.name = std::move(name),
          .dims = {Dim::Row, Dim::Other, Dim::Feature},
          .sizes = [at = std::move(at)](const nn::ForwardContext& step, int64_t block) -> std::vector<int64_t> {
            const auto [features, level] = at(block);
            return {step.batch->rows(), unet_size_of(step, level).pixels(), features};
          }};
}

UnetTextCondition::UnetTextCondition(const UnetSizes& own, const std::string& prefix, nn::Layers& make)
    : size_features_(own.size_features),
      part_(make.field_part()),
      dtype_(make.parameters().options().dtype),
      layers_(prefix + "more",
              VectorEmbedding{.in = own.pooled + kPictureSizes * own.size_features,
                              .size = unet_condition_features(own),
                              .first = of_inputs(own.pooled + kPictureSizes * own.size_features),
                              .second = of_inputs(unet_condition_features(own))},
              make) {}

at::Tensor UnetTextCondition::forward(const at::Tensor& pooled, const nn::ForwardContext& step) const {
  const at::Tensor sizes = part_(step.batch->field("sizes"), step).to(at::promote_types(dtype_, at::kFloat));
  const at::Tensor sinusoids = nn::time_sinusoids(sizes.flatten(), size_features_, {.cosines_first = true});
  return layers_.forward(at::cat({pooled.to(sinusoids.scalar_type()), sinusoids.view({pooled.size(0), -1})}, 1));
}

UnetConditioning::UnetConditioning(const UnetSizes& own, const std::string& prefix, nn::Layers& make)
    : part_(make.field_part()),
      of_time_(prefix + "time", unet_condition_features(own),
               {.sinusoids = own.features.front(),
                .first_deviation = of_inputs(own.features.front()),
                .second_deviation = of_inputs(unet_condition_features(own))},
               make) {
  if (own.pooled > 0) more_.emplace(own, prefix, make);
}

at::Tensor UnetConditioning::forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
  const at::Tensor of_time = of_time_.forward(part_(batch.field("times"), step));
  if (!more_) return of_time;
  return of_time + more_->forward(part_(batch.field("pooled"), step), step);
}

}  // namespace colossal::models
