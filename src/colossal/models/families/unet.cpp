#include "colossal/models/families/unet.h"

#include <ATen/ATen.h>

#include <cmath>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/unet_parts.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/field_linear.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/ops/activation.h"
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
  f.integers("transformers", transformers, "", "1 for each level whose ResNets a transformer follows, else 0", 0, 1);
  f.integers("attention_heads", attention_heads, "heads",
             "number of attention heads of each level; the last is also that of the middle", 1, kMaxFeatures);
  f.integer("text", text, "features", "width of the text states", 1, kMaxFeatures);
  f.flag("linear_projection", linear_projection,
         "transformers begin and end with linear layers, which is another form of 1 x 1 convolutions");
  f.integer("groups", groups, "groups", "groups of each GroupNorm", 1, kMaxFeatures);
  f.choice("target", target, {"epsilon", "v"}, "default of diffusion.target");
  f.flag("upcast_attention", upcast_attention,
         "for folders only: diffusers shall compute scores in fp32, as is always done here");
}

namespace unet {  // a namespace of its own, because every family has functions of these names

constexpr double kBeforeAttention = 1e-6;  // epsilon of the GroupNorm of a transformer
constexpr double kInTransformer = 1e-5;    // epsilon of its LayerNorms

/// Returns the standard deviation of the uniform distribution with bound 1 / sqrt(in), from which torch draws the
/// weights of these layers.
double of_inputs(int64_t in) { return 1 / std::sqrt(3.0 * static_cast<double>(in)); }

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

/// Returns the preset of the text encoder whose states have that many features.
const char* text_encoder_of(const UnetSizes& own) {
  return own.text == 768 ? "clip-l" : own.text == 1024 ? "open-clip-h" : own.text == 64 ? "clip-text-tiny" : "";
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
                      .text_encoder = text_encoder_of(own),
                      .vae = own.channels == 3 ? ""
                             : own.text >= 768 ? "autoencoder-kl"
                                               : "autoencoder-kl-tiny"});
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

/// A transformer over the pixels: attention among them, attention to the text and a feed-forward layer, between two
/// projections.
class Transformer {
 public:
  Transformer(const ModelShape& s, const UnetPart& part, const std::string& name, nn::Layers& make)
      : part_(part), linear_(s.own.as<UnetSizes>().linear_projection) {
    const auto own = s.own.as<UnetSizes>();
    const int64_t size = part.out, heads = own.attention_heads[part.level], inside = 4 * size;
    const nn::AttentionShape shape{.hidden = size, .heads = heads, .kv_heads = heads, .head_dim = size / heads};
    nn::AttentionShape to_text = shape;
    to_text.source_hidden = own.text;
    const nn::LinearOptions of_size{.bias = false, .deviation = of_inputs(size)},
        of_text{.bias = false, .deviation = of_inputs(own.text)}, out{.deviation = of_inputs(size)};
    const auto layer_norm = [&](const char* layer) {
      return make.layer_norm(name + layer, size, {.epsilon = kInTransformer});
    };
    const std::vector<int64_t> taps = linear_ ? std::vector<int64_t>() : std::vector<int64_t>{1, 1};
    norm_ = make.group_norm(name + ".norm", size, {own.groups, kBeforeAttention}, nn::Place::Outside);
    proj_in_ = make.dense(name + ".proj_in", size, size, {.deviation = of_inputs(size), .taps = taps});
    self_.norm = layer_norm(".attention.norm");
    qkv_ = make.heads(name + ".attention.qkv", shape, of_size);
    self_.attention = make.attention(name + ".attention", shape, {.causal = false});
    self_.out = make.from_heads(name + ".attention.out", shape, out);
    cross_.norm = layer_norm(".cross.norm");
    to_text_ = make.cross_heads(name + ".cross", to_text, of_size, of_text);
    cross_.attention = make.attention(name + ".cross", to_text, {.causal = false});
    cross_.out = make.from_heads(name + ".cross.out", to_text, out);
    mlp_norm_ = layer_norm(".mlp.norm");
    gate_up_ = make.expand(name + ".mlp.gate_up", size, 2 * inside,
                           {.deviation = of_inputs(size), .segments = {{inside}, {inside}}});
    down_ = make.contract(name + ".mlp.down", inside, size, {.deviation = of_inputs(inside)});
    proj_out_ = make.dense(name + ".proj_out", size, size, {.deviation = 0, .taps = taps});
  }

  std::vector<int> reads() const { return {part_.reads, kUnetText}; }

  at::Tensor forward(const States& states, const nn::ForwardContext& step) const {
    const at::Tensor& x = states[part_.reads];
    const nn::Pictures pictures{size_of(step, part_.level), ops::Window::same(1)};
    at::Tensor h = projected(*proj_in_, norm_->forward(x), pictures);
    h = h + self_.after(qkv_->forward(self_.norm->forward(h), step), step);
    h = h + cross_.after(to_text_->forward(cross_.norm->forward(h), states[kUnetText], step), step);
    h = h + down_->forward(gate_up_->forward(mlp_norm_->forward(h)).map(geglu_, step));
    return x + projected(*proj_out_, h, pictures);
  }

 private:
  struct Branch {
    at::Tensor after(const nn::Heads& heads, const nn::ForwardContext& step) const {
      return out->forward(attention->forward(heads, step), step);
    }
    std::unique_ptr<nn::Norm> norm;
    std::unique_ptr<nn::Attention> attention;
    std::unique_ptr<nn::OutputProjection> out;
  };
  at::Tensor projected(nn::Dense& layer, const at::Tensor& x, const nn::Pictures& pictures) const {
    return linear_ ? layer.forward(x) : layer.forward(x, pictures);
  }

  UnetPart part_;
  bool linear_;
  at::Tensor (*geglu_)(const at::Tensor&) = ops::activation("gelu").gated;  // exact, the gate first
  std::unique_ptr<nn::GroupNorm> norm_;
  std::unique_ptr<nn::Dense> proj_in_, proj_out_;
  Branch self_, cross_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::CrossProjection> to_text_;
  std::unique_ptr<nn::Norm> mlp_norm_;
  std::unique_ptr<nn::Expand> gate_up_;
  std::unique_ptr<nn::Contract> down_;
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

/// The vector of a time, linear(silu(linear(sinusoids))). Every rank computes it for its rows; the layers take one row
/// a sample, so there is little to divide.
class Conditioning {
 public:
  Conditioning(const UnetSizes& own, nn::Layers& make)
      : part_(make.field_part()),
        dtype_(make.parameters().options().dtype),
        sinusoids_(own.features.front()),
        first_(make, "time.linear_1", sinusoids_, condition_features(own), of_inputs(sinusoids_)),
        second_(make.dense("time.linear_2", condition_features(own), condition_features(own),
                           {.deviation = of_inputs(condition_features(own))})) {}

  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const at::Tensor times = part_(batch.field("times"), step).to(at::promote_types(dtype_, at::kFloat));
    const at::Tensor x = nn::time_sinusoids(times, sinusoids_, {.cosines_first = true}).to(dtype_);
    return second_->forward(at::silu(first_.forward(x)));
  }

 private:
  nn::FieldPart part_;
  at::ScalarType dtype_;
  int64_t sinusoids_;
  nn::FieldLinear first_;
  std::unique_ptr<nn::Dense> second_;
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
    if (part.writes >= kUnetSkips) add_skip(part.out, part.level);
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
      return made<Transformer>(s, part, name, make);
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

/// Returns toys of the form of Stable Diffusion's UNets, for latents of 16 x 16, and these UNets.
std::vector<Preset> presets() {
  UnetSizes second{.height = 96, .width = 96, .attention_heads = {5, 10, 20, 20}, .text = 1024, .target = "v"};
  second.linear_projection = second.upcast_attention = true;
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
  return {{"sd-1.5-tiny", sized(toy)},
          {"sd-2.1-tiny", sized(second_toy)},
          {"sd-1.5", sized({})},
          {"sd-2.1", sized(second)}};
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
