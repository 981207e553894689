#include "colossal/models/families/unet.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/conditions.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/unet_blocks.h"
#include "colossal/models/unet_control.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/models/unet_parts.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
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

/// The norm and the convolution to the prediction.
class End {
 public:
  End(const ModelShape& s, nn::Layers& make) {
    const auto own = s.own.as<UnetSizes>();
    norm_ = make.group_norm("norm", own.features.front(), {own.groups, s.norm_epsilon}, nn::Place::Outside);
    outputs_ = make.outputs("head", own.features.front(), own.outputs, unet_last_kernel(3));
  }

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const at::Tensor y = at::silu(norm_->forward(x));
    return outputs_->forward(y.to(at::promote_types(y.scalar_type(), at::kFloat)),
                             {unet_size_of(step, 0), ops::Window::same(3)}, step);
  }

 private:
  std::unique_ptr<nn::GroupNorm> norm_;
  std::unique_ptr<nn::Outputs> outputs_;
};

/// The states of captions within a model: of the fields of ids, and of the features of its encoders.
State text_within_state(const char* name, const char* ids, std::function<int64_t(int64_t block)> features) {
  using tensor::Dim;
  return {.name = name,
          .dims = {Dim::Row, Dim::Other, Dim::Feature},
          .sizes = [=](const nn::ForwardContext& step, int64_t block) -> std::vector<int64_t> {
            return {step.batch->rows(), step.batch->at(ids).size(1), features(block)};
          }};
}

/// Returns the state of captions: a field, or what the encoders within the model pass on. `first`: number of the block
/// that is the first part.
State text_state(const UnetSizes& own, const OwnTextEncoder& texts, int64_t first) {
  using tensor::Dim;
  if (first == 0)
    return {.name = "text",
            .dims = {Dim::Row, Dim::Other, Dim::Feature},
            .sizes = [](const nn::ForwardContext& step, int64_t) { return step.batch->at("text").sizes().vec(); },
            .has_gradient = false};
  const int64_t alone = texts.second ? texts.shape->hidden : own.text;
  return text_within_state("text", "ids",
                           [=, joined = own.text](int64_t block) { return block + 1 < first ? alone : joined; });
}

/// `first`: as of text_state().
std::vector<State> states_of(const UnetSizes& own, const std::vector<UnetPart>& parts, const OwnTextEncoder& texts,
                             int64_t first) {
  using tensor::Dim;
  using Sizes = std::vector<int64_t>;
  const auto of_part = [parts, first](int64_t block) {
    const UnetPart& part = parts[std::max<int64_t>(block - first, 0)];
    return std::pair(part.out, part.level);
  };
  std::vector<State> states{unet_pixels_state("hidden", of_part)};
  states.push_back(
      {.name = "condition",
       .dims = {Dim::Row, Dim::Feature},
       .sizes = [features = unet_condition_features(own)](const nn::ForwardContext& step, int64_t) -> Sizes {
         return {step.batch->rows(), features};
       }});
  states.push_back(text_state(own, texts, first));
  const auto add_skip = [&](int64_t features, int64_t level) {
    states.push_back(unet_pixels_state(concat("skip.", states.size() - kUnetSkips),
                                       [=](int64_t) { return std::pair(features, level); }));
  };
  add_skip(own.features.front(), 0);
  for (const UnetPart& part : parts)
    if (part.writes >= kUnetSkips && part.writes != part.inside) add_skip(part.out, part.level);
  const auto is_in_layers = [](const UnetPart& part) { return part.layers > 1; };
  if (std::any_of(parts.begin(), parts.end(), is_in_layers)) states.push_back(unet_pixels_state("inside", of_part));
  if (texts.second)
    states.push_back(
        text_within_state("text_2", "ids_2", [features = texts.second->hidden](int64_t) { return features; }));
  return states;
}

/// Returns what reads the states of captions from their field.
Embed::OfOne field_of_text(nn::Layers& layers) {
  return [part = layers.field_part(), dtype = layers.parameters().options().dtype](const tensor::Batch& batch,
                                                                                   const nn::ForwardContext& step) {
    return part(batch.field("text"), step).to(dtype);
  };
}

/// What a UNet may have within it.
struct Within {
  std::shared_ptr<const UnetImagePrompt> image{};  // null without an IP-adapter
  std::shared_ptr<const UnetControl> control{};    // null without a ControlNet
};

/// Makes what the shape has within it, and adds its fields and states.
Within make_within(const ModelShape& s, const std::vector<UnetPart>& parts, Model& model, nn::Layers& layers) {
  Within within;
  if (has_image_prompt(s)) {
    within.image = std::make_shared<const UnetImagePrompt>(s, layers);
    model.fields.emplace_back(kImageEmbedding);
    model.states.push_back(within.image->state());
  }
  if (has_control(s)) {
    model.fields.emplace_back(kControl);
    within.control = std::make_shared<const UnetControl>(s, parts, model.states, layers);
  }
  return within;
}

Embed make_embed(const ModelShape& s, Model& model, const Within& within, nn::Layers& layers) {
  const auto own = s.own.as<UnetSizes>();
  const std::shared_ptr<nn::PictureEmbedding> conv =
      layers.picture_embedding("pictures", own.channels, own.features.front(), 3, of_inputs(own.channels * 3 * 3));
  const auto encoders = s.part<OwnTextEncoder>();
  UnetSizes told = own;
  if (encoders.second) told.pooled = 0;  // it is added after the encoders
  const auto conditioning = std::make_shared<const UnetConditioning>(told, "", layers);
  const int second = static_cast<int>(model.states.size()) - 1;  // there is nothing else within a model of two
  EmbeddedTexts texts;
  if (encoders.second) {
    const auto of_pooled = [&](int64_t block) -> PooledText {
      return [more = std::make_shared<const UnetTextCondition>(own, concat("blocks.", block, "."), layers)](
                 const at::Tensor& pooled, const nn::ForwardContext& step) { return more->forward(pooled, step); };
    };
    texts = add_text_encoders(encoders, {kUnetText, second, kUnetCondition}, model, layers, of_pooled);
  }
  const Embed::OfOne text = encoders.second  ? texts.first
                            : encoders.shape ? add_text_encoder(*encoders.shape, kUnetText, model, layers)
                                             : field_of_text(layers);
  const int image = unet_image_state(own);
  const auto embed = [=, part = layers.field_part()](States& states, const tensor::Batch& batch,
                                                     const nn::ForwardContext& step) {
    if (texts.second) states[second] = texts.second(batch, step);
    states[kUnetSkips] = conv->forward(part(batch.field("noised"), step), ops::Window::same(3));
    states[kUnetCondition] = conditioning->forward(batch, step);
    states[kUnetText] = text(batch, step);
    if (within.image) states[image] = within.image->forward(batch, step);
    if (within.control) within.control->embed(states, batch, step);
  };
  std::vector<int> writes{kUnetSkips, kUnetCondition, kUnetText};
  if (texts.second) writes.push_back(second);
  if (within.image) writes.push_back(image);
  for (const int state : within.control ? within.control->embedded() : std::vector<int>()) writes.push_back(state);
  return Embed(writes, embed);
}

/// Makes the block of a part, with the ControlNet if there is one.
models::Block make_block(const ModelShape& s, const std::vector<UnetPart>& parts, size_t index, size_t number,
                         const UnetControl* control, nn::Layers& layers) {
  const UnetLayer layer = make_unet_layer(s, parts[index], concat("blocks.", number), layers);
  if (control) return control->joined(index, layer, layers);
  return {layer.reads,
          {parts[index].writes},
          [layer, to = parts[index].writes](States& states, const nn::ForwardContext& step) {
            states[to] = layer.forward(states, step);
          }};
}

Model make(const ModelShape& s, nn::Layers& layers) {
  require(!layers.splits_tokens(), "parallel",
          "a UNet must have all pixels of a picture on one rank: got a layout that splits them; leave out "
          "parallel.sequence and parallel.tensor.sequence");
  const auto own = s.own.as<UnetSizes>();
  const std::vector<UnetPart> parts = unet_parts(own);
  const int64_t first = text_encoder_blocks(s);
  Model model;
  const auto texts = s.part<OwnTextEncoder>();
  model.fields = {"noised", "times", first > 0 ? "ids" : "text"};
  if (own.pooled > 0) model.fields.insert(model.fields.end(), {texts.second ? "ids_2" : "pooled", "sizes"});
  model.states = states_of(own, parts, texts, first);
  const Within within = make_within(s, parts, model, layers);
  model.embed = make_embed(s, model, within, layers);
  for (size_t i = 0; i < parts.size(); ++i)
    model.blocks.push_back(make_block(s, parts, i, model.blocks.size(), within.control.get(), layers));
  if (within.control) mark_control(layers.parameters());
  if (within.image) mark_image_prompt(layers.parameters());
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
