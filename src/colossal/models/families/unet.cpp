#include "colossal/models/families/unet.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/number_embedder.h"
#include "colossal/models/unet_parts.h"
#include "colossal/models/unet_transformer.h"
#include "colossal/models/vector_embedder.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {

void UnetSizes::fields(Fields& f) {
  constexpr int64_t kMaxCells = 1 << 16, kMaxFeatures = 1 << 20, kMaxResnets = 64;
  f.integer("height", height, "cells", "height of the latents", 1, kMaxCells);
  f.integer("width", width, "cells", "width of the latents", 1, kMaxCells);
  f.integer("channels", channels, "channels", "number of channels that are read", 1, kMaxFeatures);
  f.integer("outputs", outputs, "channels", "number of channels that are predicted", 1, kMaxFeatures);
  f.integers("features", features, "features", "width of each level, the largest pictures first", 1, kMaxFeatures);
  f.integer("resnets", resnets, "blocks", "ResNets of a level on the way down; the way up has one more", 1,
            kMaxResnets);
  f.integers("transformers", transformers, "", "layers of the transformer behind each ResNet of a level; 0 = none", 0,
             kMaxResnets);
  f.integers("attention_heads", attention_heads, "heads",
             "number of attention heads of each level; the last is also that of the middle", 1, kMaxFeatures);
  f.integer("text", text, "features", "width of the text states", 1, kMaxFeatures);
  f.integer("pooled", pooled, "features",
            "width of the one state of a whole text that it also reads, with sizes of the picture; 0 = neither", 0,
            kMaxFeatures);
  f.integer("size_features", size_features, "features", "sinusoids of each of those sizes", 2, kMaxFeatures);
  f.flag("linear_projection", linear_projection,
         "transformers begin and end with linear layers, which is another form of 1 x 1 convolutions");
  f.integer("groups", groups, "groups", "groups of each GroupNorm", 1, kMaxFeatures);
  f.choice("target", target, {"epsilon", "v"}, "default of diffusion.target");
  f.flag("upcast_attention", upcast_attention,
         "for folders only: diffusers shall compute scores in fp32, as is always done here");
}

namespace unet {  // a namespace of its own, because every family has functions of these names

/// Returns the options of a convolution with a square kernel.
nn::LinearOptions kernel(int64_t side, int64_t in) {
  return {.deviation = of_inputs(in * side * side), .taps = {side, side}};
}
/// Returns those of a convolution at the end of a residual branch, or of the model. It starts at 0, as in Stable
/// Diffusion's own training: each block begins as the identity, so deep gradients begin small.
nn::LinearOptions last_kernel(int64_t side) { return {.deviation = 0, .taps = {side, side}}; }

/// Returns the number of features of the vector of a time.
int64_t condition_features(const UnetSizes& own) { return 4 * own.features.front(); }

/// Returns the size of the pictures of a level.
ops::PictureSize size_of(const nn::ForwardContext& step, int64_t level) {
  return unet_level_size(picture_size(*step.batch), level);
}

Task task(const ModelShape&) { return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "diffusion"}; }

void check(const UnetSizes& own) {
  const size_t levels = own.features.size();
  require(levels > 0, "model", "features must have the width of one level or more: got none");
  const std::pair<const char*, size_t> lists[] = {{"transformers", own.transformers.size()},
                                                  {"attention_heads", own.attention_heads.size()}};
  for (const auto& [name, size] : lists)
    require(size == levels, "model", name, " must have an entry for each of the ", levels, " levels of features: got ",
            size);
  require(own.pooled == 0 || own.size_features % 2 == 0, "model",
          "size_features must be even, for sines and cosines: got ", own.size_features);
  require(own.features.front() % 2 == 0, "model", "the first of features must be even, for the sines of times: got ",
          own.features.front());
  for (size_t i = 0; i < levels; ++i) {
    require(own.features[i] % own.groups == 0, "model", "groups must divide features: got ", own.groups, " groups, ",
            own.features[i], " features");
    const bool attends = own.transformers[i] > 0 || i + 1 == levels;
    require(!attends || own.features[i] % own.attention_heads[i] == 0, "model",
            "attention_heads must divide features: got ", own.attention_heads[i], " heads, ", own.features[i],
            " features");
  }
}

/// Returns the text encoders whose states have that many features.
std::vector<CaptionPart> captions_of(const UnetSizes& own) {
  if (own.pooled > 0) {
    const bool is_tiny = own.text == 96 && own.pooled == 24, is_sdxl = own.text == 2048 && own.pooled == 1280;
    return {{.preset = is_sdxl   ? "clip-l"
                       : is_tiny ? "clip-text-tiny"
                                 : "",
             .states = CaptionStates::Hidden},
            {.preset = is_sdxl   ? "open-clip-bigg"
                       : is_tiny ? "clip-text-tiny-projected"
                                 : "",
             .states = CaptionStates::Hidden,
             .pooled = true}};
  }
  return {{.preset = own.text == 768    ? "clip-l"
                     : own.text == 1024 ? "open-clip-h"
                     : own.text == 64   ? "clip-text-tiny"
                                        : ""}};
}

/// Sets the sizes of the model to what follows from its levels.
void settle(ModelShape& s) {
  const auto own = s.own.as<UnetSizes>();
  check(own);
  require(s.dropout == 0, "model", "a UNet has no dropout: got ", s.dropout, "; set model.dropout = 0");
  s.hidden = own.features.front();
  s.layers = text_encoder_blocks(s) + static_cast<int64_t>(unet_parts(own).size());
  s.positions = own.height * own.width;
  s.tied = false;
  s.set(NormGroupSizes{own.groups});
  s.set(DenoiserSizes{.channels = own.outputs,
                      .beside = own.channels - own.outputs,
                      .height = own.height,
                      .width = own.width,
                      .outputs = own.outputs,
                      .text = own.text,
                      .target = own.target == "v" ? "v" : "epsilon",
                      .guidance = own.pooled > 0 ? 5 : 7.5,
                      .captions = captions_of(own),
                      .vae = own.channels == 3                   ? ""
                             : own.pooled > 0 && own.text >= 768 ? "autoencoder-kl-sdxl"
                             : own.text >= 768                   ? "autoencoder-kl"
                                                                 : "autoencoder-kl-tiny",
                      .pooled = own.pooled,
                      .sizes = own.pooled > 0 ? kPictureSizes : 0});
}

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
    const int64_t in = part.in + part.skip_features, out = part.out, time = condition_features(own);
    if (part.joins()) joined_ = std::make_unique<Joined>(make, part.in, part.skip_features);
    norm_1_ = make.group_norm(name + ".norm_1", in, groups, nn::Place::Outside);
    conv_1_ = make.expand(name + ".conv_1", in, out, kernel(3, in));
    time_ = make.expand(name + ".time", time, out, {.deviation = of_inputs(time)});
    norm_2_ = make.group_norm(name + ".norm_2", out, groups, nn::Place::Inside);
    conv_2_ = make.contract(name + ".conv_2", out, out, last_kernel(3));
    if (in != out) shortcut_ = make.dense(name + ".shortcut", in, out, kernel(1, in));
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
    const ops::PictureSize size = size_of(step, part_.level);
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
      : part_(part), conv_(make.dense(name + ".conv", part.in, part.out, kernel(3, part.in))) {}

  std::vector<int> reads() const { return {part_.reads}; }

  at::Tensor forward(const States& states, const nn::ForwardContext& step) const {
    const at::Tensor& x = states[part_.reads];
    const ops::PictureSize from = size_of(step, part_.from), to = size_of(step, part_.level);
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

/// The vector of a time and, of SDXL, of the pooled text and the sizes of the picture.
class Conditioning {
 public:
  Conditioning(const UnetSizes& own, nn::Layers& make)
      : own_(own),
        part_(make.field_part()),
        dtype_(make.parameters().options().dtype),
        of_time_("time", condition_features(own),
                 {.sinusoids = own.features.front(),
                  .first_deviation = of_inputs(own.features.front()),
                  .second_deviation = of_inputs(condition_features(own))},
                 make) {
    if (own.pooled == 0) return;
    const int64_t in = own.pooled + kPictureSizes * own.size_features, size = condition_features(own);
    more_.emplace("more", VectorEmbedding{in, size, of_inputs(in), of_inputs(size)}, make);
  }

  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const at::Tensor of_time = of_time_.forward(part_(batch.field("times"), step));
    if (!more_) return of_time;
    const at::Tensor sizes = part_(batch.field("sizes"), step).to(at::promote_types(dtype_, at::kFloat));
    const at::Tensor sinusoids = nn::time_sinusoids(sizes.flatten(), own_.size_features, {.cosines_first = true});
    const at::Tensor pooled = part_(batch.field("pooled"), step).to(sinusoids.scalar_type());
    return of_time + more_->forward(at::cat({pooled, sinusoids.view({pooled.size(0), -1})}, 1));
  }

 private:
  UnetSizes own_;
  nn::FieldPart part_;
  at::ScalarType dtype_;
  NumberEmbedder of_time_;
  std::optional<VectorEmbedder> more_;  // of a model with `pooled`
};

/// The norm and the convolution to the prediction.
class End {
 public:
  End(const ModelShape& s, nn::Layers& make) {
    const auto own = s.own.as<UnetSizes>();
    norm_ = make.group_norm("norm", own.features.front(), {own.groups, s.norm_epsilon}, nn::Place::Outside);
    outputs_ = make.outputs("head", own.features.front(), own.outputs, last_kernel(3));
  }

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const at::Tensor y = at::silu(norm_->forward(x));
    return outputs_->forward(y.to(at::promote_types(y.scalar_type(), at::kFloat)),
                             {size_of(step, 0), ops::Window::same(3)}, step);
  }

 private:
  std::unique_ptr<nn::GroupNorm> norm_;
  std::unique_ptr<nn::Outputs> outputs_;
};

/// Returns the pixels of a level as a state; `at` returns the features and the level of a block's result.
State pixels_state(std::string name, std::function<std::pair<int64_t, int64_t>(int64_t block)> at) {
  using tensor::Dim;
  return {.name = std::move(name),
          .dims = {Dim::Row, Dim::Other, Dim::Feature},
          .sizes = [at = std::move(at)](const nn::ForwardContext& step, int64_t block) -> std::vector<int64_t> {
            const auto [features, level] = at(block);
            return {step.batch->rows(), size_of(step, level).pixels(), features};
          }};
}

/// `first`: number of the block that is the first part.
std::vector<State> states_of(const UnetSizes& own, const std::vector<UnetPart>& parts, int64_t first) {
  using tensor::Dim;
  using Sizes = std::vector<int64_t>;
  const auto of_part = [parts, first](int64_t block) {
    const UnetPart& part = parts[std::max<int64_t>(block - first, 0)];
    return std::pair(part.out, part.level);
  };
  std::vector<State> states{pixels_state("hidden", of_part)};
  states.push_back({.name = "condition",
                    .dims = {Dim::Row, Dim::Feature},
                    .sizes = [features = condition_features(own)](const nn::ForwardContext& step, int64_t) -> Sizes {
                      return {step.batch->rows(), features};
                    }});
  states.push_back({.name = "text",
                    .dims = {Dim::Row, Dim::Other, Dim::Feature},
                    .sizes = [features = own.text, first](const nn::ForwardContext& step, int64_t) -> Sizes {
                      if (first == 0) return step.batch->at("text").sizes().vec();
                      return {step.batch->rows(), step.batch->at("ids").size(1), features};
                    },
                    .has_gradient = first > 0});  // else it is a field
  const auto add_skip = [&](int64_t features, int64_t level) {
    states.push_back(
        pixels_state(concat("skip.", states.size() - kUnetSkips), [=](int64_t) { return std::pair(features, level); }));
  };
  add_skip(own.features.front(), 0);
  for (const UnetPart& part : parts)
    if (part.writes >= kUnetSkips && part.writes != part.inside) add_skip(part.out, part.level);
  const auto is_in_layers = [](const UnetPart& part) { return part.layers > 1; };
  if (std::any_of(parts.begin(), parts.end(), is_in_layers)) states.push_back(pixels_state("inside", of_part));
  return states;
}

template <class Made>
models::Block made(const ModelShape& s, const UnetPart& part, const std::string& name, nn::Layers& make) {
  const auto block = std::make_shared<const Made>(s, part, name, make);
  return {block->reads(), {part.writes}, [block, to = part.writes](States& states, const nn::ForwardContext& step) {
            states[to] = block->forward(states, step);
          }};
}

models::Block make_block(const ModelShape& s, const UnetPart& part, const std::string& name, nn::Layers& make) {
  switch (part.kind) {
    case UnetPart::Kind::Resnet:
      return made<Resnet>(s, part, name, make);
    case UnetPart::Kind::Transformer:
      return made<UnetTransformer>(s, part, name, make);
    default:
      return made<Resampler>(s, part, name, make);
  }
}

/// Returns what reads the states of captions from their field.
Embed::OfOne field_of_text(nn::Layers& layers) {
  return [part = layers.field_part(), dtype = layers.parameters().options().dtype](const tensor::Batch& batch,
                                                                                   const nn::ForwardContext& step) {
    return part(batch.field("text"), step).to(dtype);
  };
}

Embed make_embed(const ModelShape& s, Model& model, nn::Layers& layers) {
  const auto own = s.own.as<UnetSizes>();
  const std::shared_ptr<nn::PictureEmbedding> conv =
      layers.picture_embedding("pictures", own.channels, own.features.front(), 3, of_inputs(own.channels * 3 * 3));
  const auto conditioning = std::make_shared<const Conditioning>(own, layers);
  const auto encoder = s.part<OwnTextEncoder>().shape;
  const Embed::OfOne text = encoder ? add_text_encoder(*encoder, kUnetText, model, layers) : field_of_text(layers);
  const auto embed = [conv, conditioning, text, part = layers.field_part()](States& states, const tensor::Batch& batch,
                                                                            const nn::ForwardContext& step) {
    states[kUnetSkips] = conv->forward(part(batch.field("noised"), step), ops::Window::same(3));
    states[kUnetCondition] = conditioning->forward(batch, step);
    states[kUnetText] = text(batch, step);
  };
  return Embed({kUnetSkips, kUnetCondition, kUnetText}, embed);
}

Model make(const ModelShape& s, nn::Layers& layers) {
  require(!layers.splits_tokens(), "parallel",
          "a UNet must have all pixels of a picture on one rank: got a layout that splits them; leave out "
          "parallel.sequence and parallel.tensor.sequence");
  const auto own = s.own.as<UnetSizes>();
  const std::vector<UnetPart> parts = unet_parts(own);
  const int64_t first = text_encoder_blocks(s);
  Model model;
  model.fields = {"noised", "times", first > 0 ? "ids" : "text"};
  if (own.pooled > 0) model.fields.insert(model.fields.end(), {"pooled", "sizes"});
  model.states = states_of(own, parts, first);
  model.embed = make_embed(s, model, layers);
  for (const UnetPart& part : parts)
    model.blocks.push_back(make_block(s, part, concat("blocks.", model.blocks.size()), layers));
  const auto end = std::make_shared<const End>(s, layers);
  model.norm = models::Block({kUnetHidden}, {kUnetHidden}, [end](States& states, const nn::ForwardContext& step) {
    states[kUnetHidden] = end->forward(states[kUnetHidden], step);
  });
  return model;
}

ModelShape sized(const UnetSizes& own) {
  ModelShape shape{.own = own};
  settle(shape);
  return shape;
}

/// Returns toys of the form of Stable Diffusion's UNets, for latents of 8 x 8, and these UNets.
std::vector<Preset> presets() {
  UnetSizes second{.height = 96, .width = 96, .attention_heads = {5, 10, 20, 20}, .text = 1024, .target = "v"};
  second.linear_projection = second.upcast_attention = true;
  const UnetSizes third{.height = 128,
                        .width = 128,
                        .features = {320, 640, 1280},
                        .transformers = {0, 2, 10},
                        .attention_heads = {5, 10, 20},
                        .text = 2048,
                        .pooled = 1280,
                        .linear_projection = true};
  UnetSizes toy{.height = 8,
                .width = 8,
                .features = {32, 64, 64},
                .resnets = 1,
                .transformers = {1, 1, 0},
                .attention_heads = {4, 4, 4},
                .text = 64,
                .groups = 8};
  UnetSizes second_toy = toy;
  second_toy.attention_heads = {2, 4, 4};
  second_toy.target = "v";
  second_toy.linear_projection = second_toy.upcast_attention = true;
  UnetSizes third_toy = toy;
  third_toy.features = {32, 64};
  third_toy.transformers = {0, 2};
  third_toy.attention_heads = {2, 4};
  third_toy.text = 96, third_toy.pooled = 24, third_toy.size_features = 8;
  third_toy.linear_projection = true;
  return {{"sd-1.5-tiny", sized(toy)},     {"sd-2.1-tiny", sized(second_toy)},
          {"sdxl-tiny", sized(third_toy)}, {"sdxl", sized(third)},
          {"sd-1.5", sized({})},           {"sd-2.1", sized(second)}};
}

}  // namespace unet

Architecture unet_architecture() {
  return {.name = "unet",
          .own = UnetSizes{},
          .presets = unet::presets(),
          .make = unet::make,
          .task = unet::task,
          .unused = {"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "positions"},
          .settle = unet::settle,
          .diffusers = {.class_name = "UNet2DConditionModel",
                        .part = "unet",
                        .pipeline = "StableDiffusionPipeline",
                        .names = unet_diffusers_names,
                        .from_json = unet_from_diffusers,
                        .to_json = unet_to_diffusers}};
}

}  // namespace colossal::models
