#include "colossal/models/families/autoencoder_kl.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/built_in.h"
#include "colossal/models/task.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/ops/group_norm.h"

namespace colossal::models {

void AutoencoderKlSizes::fields(Fields& f) {
  constexpr int64_t kMaxSide = 1 << 16;
  f.integer("height", height, "pixels", "height of the pictures in training", 1, kMaxSide);
  f.integer("width", width, "pixels", "width of the pictures in training", 1, kMaxSide);
  f.integer("channels", channels, "channels", "number of channels of a picture", 1, kMaxSize);
  f.integers("levels", levels, "features", "features of each level; sides halve from one to the next", 1, kMaxSize);
  f.integer("resnets", resnets, "", "ResNets of each level of the encoder; the decoder has one more", 1, 1 << 10);
  f.integer("latent_channels", latent_channels, "channels", "number of channels of a latent", 1, kMaxSize);
  f.integer("groups", groups, "", "groups of each norm", 1, kMaxSize);
  f.number("scaling", scaling, "", "factor of latents that a model of noise reads");
  f.number("shift", shift, "", "number subtracted from latents before that factor");
  f.flag("quant_conv", quant_conv, "a linear layer follows the encoder");
  f.flag("post_quant_conv", post_quant_conv, "a linear layer precedes the decoder");
  f.flag("attention", attention, "cells attend to each other at the smallest size");
}

std::vector<AutoencoderKlBlock> autoencoder_kl_blocks(const AutoencoderKlSizes& sizes) {
  using Kind = AutoencoderKlBlock::Kind;
  const auto levels = static_cast<int64_t>(sizes.levels.size());
  const int64_t last = levels - 1, most = sizes.levels.back();
  std::vector<AutoencoderKlBlock> blocks;
  const auto add_middle = [&](bool decodes, const std::string& folder) {
    blocks.push_back({Kind::Resnet, decodes, last, most, most, folder + "mid_block.resnets.0."});
    if (sizes.attention)
      blocks.push_back({Kind::Attention, decodes, last, most, most, folder + "mid_block.attentions.0."});
    blocks.push_back({Kind::Resnet, decodes, last, most, most, folder + "mid_block.resnets.1."});
  };
  int64_t in = sizes.levels.front();
  for (int64_t level = 0; level < levels; ++level) {
    const std::string folder = concat("encoder.down_blocks.", level, ".");
    const int64_t out = sizes.levels[level];
    for (int64_t i = 0; i < sizes.resnets; ++i, in = out)
      blocks.push_back({Kind::Resnet, false, level, in, out, concat(folder, "resnets.", i, ".")});
    if (level < last) blocks.push_back({Kind::Down, false, level, out, out, folder + "downsamplers.0."});
  }
  add_middle(false, "encoder.");
  blocks.push_back({Kind::Moments, false, last, most, sizes.latent_channels, "encoder."});
  blocks.push_back({Kind::Latent, true, last, sizes.latent_channels, most, "decoder."});
  add_middle(true, "decoder.");
  in = most;
  for (int64_t level = last; level >= 0; --level) {
    const std::string folder = concat("decoder.up_blocks.", last - level, ".");
    const int64_t out = sizes.levels[level];
    for (int64_t i = 0; i <= sizes.resnets; ++i, in = out)
      blocks.push_back({Kind::Resnet, true, level, in, out, concat(folder, "resnets.", i, ".")});
    if (level > 0) blocks.push_back({Kind::Up, true, level, out, out, folder + "upsamplers.0."});
  }
  return blocks;
}

at::Tensor autoencoder_kl_moments(const at::Tensor& x) {
  constexpr double kLeastLogVariance = -30, kMostLogVariance = 20;
  const std::vector<at::Tensor> both = x.to(at::promote_types(x.scalar_type(), at::kFloat)).chunk(2, -1);
  // LibTorch runs the gradient of clamp() on values only, not on sizes.
  const at::Tensor low = both[1].masked_fill(both[1] < kLeastLogVariance, kLeastLogVariance);
  return at::cat({both[0], low.masked_fill(low > kMostLogVariance, kMostLogVariance)}, -1);
}

namespace autoencoder_kl {  // a namespace of its own, because every family has functions of these names

using Kind = AutoencoderKlBlock::Kind;

constexpr double kEpsilon = 1e-6;

Task task(const ModelShape&) {
  return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "reconstruction"};
}

/// Sets all sizes that families share: they follow from the keys of this one.
void settle(ModelShape& s) {
  const auto own = s.own.as<AutoencoderKlSizes>();
  require(!own.levels.empty() && own.levels.size() <= 16, "model",
          "levels must be the features of 1 to 16 levels: got ", own.levels.size(), " numbers");
  for (const auto& [name, size] : {std::pair{"height", own.height},
                                   {"width", own.width},
                                   {"channels", own.channels},
                                   {"resnets", own.resnets},
                                   {"latent_channels", own.latent_channels},
                                   {"groups", own.groups}})
    require(size > 0, "model", name, " must be positive: got ", size);
  for (const int64_t features : own.levels)
    require(features > 0 && features % own.groups == 0, "model", "groups must divide the features of each level: got ",
            own.groups, " and ", features, "; set model.groups or model.levels");
  const int64_t factor = own.factor();
  for (const auto& [name, side] : {std::pair{"height", own.height}, {"width", own.width}})
    require(side % factor == 0, "model", name, " must be divisible by ", factor,
            ", the pixels of a side for a cell: ", "got ", side,
            "; nearest: ", std::max<int64_t>(1, (side + factor / 2) / factor) * factor);
  require(own.scaling != 0, "model", "scaling must differ from 0: got 0; set model.scaling");
  require(s.dropout == 0, "model", "an autoencoder_kl has no dropout: got ", s.dropout, "; set model.dropout = 0");
  const std::vector<AutoencoderKlBlock> blocks = autoencoder_kl_blocks(own);
  s.hidden = own.levels.back();
  s.layers = static_cast<int64_t>(blocks.size());
  s.positions = own.height * own.width;
  s.norm_epsilon = kEpsilon;
  s.tied = false;
  s.set(AutoencoderSizes{
      .channels = own.latent_channels,
      .factor = factor,
      .scaling = own.scaling,
      .shift = own.shift,
      .encoder_blocks = std::count_if(blocks.begin(), blocks.end(), [](const auto& b) { return !b.decodes; }),
      .pixel_channels = own.channels,
      .height = own.height,
      .width = own.width});
}

/// Returns the size of hidden states of that level: that of the pictures halved, or that of the latent doubled.
ops::PictureSize size_at(const AutoencoderKlSizes& own, int64_t level, bool decodes, const tensor::Batch& batch) {
  const auto last = static_cast<int64_t>(own.levels.size()) - 1;
  const at::Tensor latents = batch.find("latents");
  const at::Tensor& pictures = latents.defined() ? latents : batch.at("images");
  const auto side = [&](int64_t dim) {
    if (latents.defined()) return latents.size(dim) << (last - level);
    return decodes ? pictures.size(dim) >> last << (last - level) : pictures.size(dim) >> level;
  };
  return {side(2), side(3)};
}

/// Returns the options of a convolution whose initial weights have the deviation that LibTorch gives them.
nn::LinearOptions kernel(int64_t in, int64_t side) {
  return {.deviation = 1 / std::sqrt(3.0 * static_cast<double>(in * side * side)), .taps = {side, side}};
}

nn::Pictures same(const ops::PictureSize& size) { return {size, ops::Window::same(3)}; }

class Resnet {
 public:
  Resnet(const AutoencoderKlBlock& b, const std::string& name, const ops::NormGroups& groups, nn::Layers& make)
      : norm_1_(make.group_norm(name + ".norm_1", b.in, groups, nn::Place::Outside)),
        conv_1_(make.expand(name + ".conv_1", b.in, b.out, kernel(b.in, 3))),
        norm_2_(make.group_norm(name + ".norm_2", b.out, groups, nn::Place::Inside)),
        conv_2_(make.contract(name + ".conv_2", b.out, b.out, kernel(b.out, 3))),
        shortcut_(b.in == b.out ? nullptr : make.dense(name + ".shortcut", b.in, b.out, kernel(b.in, 1))) {}

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
      : CellAttention({b.in, 1, 1, b.in}, kernel(b.in, 1).deviation, name, groups, make) {}

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

/// The end of the encoder: the moments, and a latent drawn of them.
class Moments {
 public:
  Moments(const AutoencoderKlSizes& own, const std::string& name, const ops::NormGroups& groups, nn::Layers& make)
      : part_(make.field_part()),
        norm_(make.group_norm(name + ".norm", own.levels.back(), groups, nn::Place::Outside)),
        conv_(make.dense(name + ".conv", own.levels.back(), 2 * own.latent_channels, kernel(own.levels.back(), 3))) {
    const int64_t both = 2 * own.latent_channels;
    if (own.quant_conv) quant_ = make.dense(name + ".quant", both, both, kernel(both, 1));
  }

  void forward(States& states, const ops::PictureSize& size, const nn::ForwardContext& step) const {
    at::Tensor x = conv_->forward(at::silu(norm_->forward(states[AutoencoderStates::hidden])), same(size));
    if (quant_) x = quant_->forward(x, {size, {}});
    states[AutoencoderStates::moments] = autoencoder_kl_moments(x);
    const std::vector<at::Tensor> both = states[AutoencoderStates::moments].chunk(2, -1);
    const at::Tensor &mean = both[0], &log_variance = both[1];
    states[AutoencoderStates::latent] = mean;
    if (!step.batch->find("noise").defined()) return;
    const at::Tensor noise = part_(step.batch->field("noise"), step).flatten(2).transpose(1, 2).to(mean.scalar_type());
    states[AutoencoderStates::latent] = mean + at::exp(log_variance * 0.5) * noise;
  }

 private:
  nn::FieldPart part_;
  std::unique_ptr<nn::GroupNorm> norm_;
  std::unique_ptr<nn::Dense> conv_, quant_;  // quant_: null = none
};

/// The beginning of the decoder.
class Latent {
 public:
  Latent(const AutoencoderKlSizes& own, const std::string& name, nn::Layers& make)
      : dtype_(make.parameters().options().dtype) {
    const int64_t channels = own.latent_channels;
    if (own.post_quant_conv) quant_ = make.dense(name + ".quant", channels, channels, kernel(channels, 1));
    conv_ = make.dense(name + ".conv", channels, own.levels.back(), kernel(channels, 3));
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
  const std::shared_ptr<nn::Dense> conv = make.dense(name + ".conv", b.in, b.out, kernel(b.in, 3));
  if (b.kind == Kind::Down)
    return [conv](const at::Tensor& x, const ops::PictureSize& size) {
      return conv->forward(x, {size, {.stride = 2, .bottom = 1, .right = 1}});
    };
  return [conv](const at::Tensor& x, const ops::PictureSize& size) {
    const ops::PictureSize twice{2 * size.height, 2 * size.width};
    return conv->forward(nn::as_pixels(ops::enlarged(nn::as_pictures(x, size), twice)), same(twice));
  };
}

/// Makes the block of that description.
Block block_of(const AutoencoderKlSizes& own, const AutoencoderKlBlock& b, const std::string& name, nn::Layers& make) {
  const ops::NormGroups groups{own.groups, kEpsilon};
  const auto here = [own, b](const nn::ForwardContext& step) { return size_at(own, b.level, b.decodes, *step.batch); };
  constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments,
                kLatent = AutoencoderStates::latent;
  switch (b.kind) {
    case Kind::Resnet: {
      const auto layer = std::make_shared<const Resnet>(b, name, groups, make);
      return Block(
          [=](const at::Tensor& x, const nn::ForwardContext& step) { return layer->forward(x, here(step), step); });
    }
    case Kind::Attention: {
      const auto layer = std::make_shared<const CellAttention>(b, name, groups, make);
      return Block([=](const at::Tensor& x, const nn::ForwardContext& step) { return layer->forward(x, step); });
    }
    case Kind::Moments: {
      const auto layer = std::make_shared<const Moments>(own, name, groups, make);
      return {{kHidden}, {kMoments, kLatent}, [=](States& states, const nn::ForwardContext& step) {
                layer->forward(states, here(step), step);
              }};
    }
    case Kind::Latent: {
      const auto layer = std::make_shared<const Latent>(own, name, make);
      return {{kLatent}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
                states[kHidden] = layer->forward(states[kLatent], here(step));
              }};
    }
    default: {
      const auto layer = resampling(b, name, make);
      return Block([=](const at::Tensor& x, const nn::ForwardContext& step) { return layer(x, here(step)); });
    }
  }
}

/// The hidden state has the size and the features of the level that a block leaves.
State hidden_of(const AutoencoderKlSizes& own, const std::vector<AutoencoderKlBlock>& blocks) {
  using tensor::Dim;
  const auto sizes = [own, blocks](const nn::ForwardContext& step, int64_t block) -> std::vector<int64_t> {
    if (block < 0) return {step.batch->rows(), size_at(own, 0, false, *step.batch).pixels(), own.levels.front()};
    const AutoencoderKlBlock& b = blocks.at(std::min(block, static_cast<int64_t>(blocks.size()) - 1));
    return {step.batch->rows(), size_at(own, b.level_after(), b.decodes, *step.batch).pixels(), b.out};
  };
  return {.name = "hidden", .dims = {Dim::Row, Dim::Token, Dim::Feature}, .sizes = sizes};
}

/// A state of the cells of a latent.
State cells_of(const char* name, const AutoencoderKlSizes& own, int64_t channels, at::ScalarType dtype) {
  using tensor::Dim;
  const auto sizes = [own, channels](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
    const auto last = static_cast<int64_t>(own.levels.size()) - 1;
    return {step.batch->rows(), size_at(own, last, true, *step.batch).pixels(), channels};
  };
  return {.name = name, .dims = {Dim::Row, Dim::Other, Dim::Other}, .sizes = sizes, .dtype = dtype};
}

/// Refuses layouts in which a rank does not have whole pictures.
void check_layout(const ModelShape& s, nn::Layers& layers) {
  const bool is_split = layers.splits_tokens() || layers.batch_parts() > 1 ||
                        layers.features(s.hidden, nn::Place::Outside)->is_split() ||
                        layers.features(s.hidden, nn::Place::Inside)->is_split();
  require(!is_split, "parallel",
          "an autoencoder_kl needs layouts in which each rank has whole pictures and features: got one that splits "
          "them; set parallel.tensor.size = 1 and parallel.sequence.size = 1, and use data, zero or pipeline");
}

Model make(const ModelShape& s, nn::Layers& layers) {
  check_layout(s, layers);
  const auto own = s.own.as<AutoencoderKlSizes>();
  const std::vector<AutoencoderKlBlock> blocks = autoencoder_kl_blocks(own);
  const at::ScalarType exact = at::promote_types(layers.parameters().options().dtype, at::kFloat);
  constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments;
  Model model;
  model.fields = {"images"};
  model.states = {hidden_of(own, blocks), cells_of("moments", own, 2 * own.latent_channels, exact),
                  cells_of("latent", own, own.latent_channels, exact)};
  const nn::FieldPart part = layers.field_part();
  const std::shared_ptr<nn::PictureEmbedding> input =
      layers.picture_embedding("input", own.channels, own.levels.front(), 3, kernel(own.channels, 3).deviation);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return input->forward(part(batch.field("images"), step), ops::Window::same(3));
  };
  for (size_t i = 0; i < blocks.size(); ++i)
    model.blocks.push_back(block_of(own, blocks[i], concat("blocks.", i), layers));
  const std::shared_ptr<nn::GroupNorm> norm =
      layers.group_norm("norm", own.levels.front(), {own.groups, kEpsilon}, nn::Place::Outside);
  const std::shared_ptr<nn::Outputs> head =
      layers.outputs("head", own.levels.front(), own.channels, kernel(own.levels.front(), 3));
  // Losses read the moments too, which the norm only passes on.
  model.norm = Block({kHidden, kMoments}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
    const at::Tensor y = at::silu(norm->forward(states[kHidden]));
    states[kHidden] = head->forward(y.to(exact), same(size_at(own, 0, true, *step.batch)), step);
  });
  return model;
}

Preset preset(const char* name, const AutoencoderKlSizes& own) {
  ModelShape shape{.tied = false, .own = own};
  settle(shape);
  return {name, shape};
}

/// Returns the autoencoders of Stable Diffusion 1 and 2, of Stable Diffusion 3 and of FLUX, and a toy for small
/// pictures.
std::vector<Preset> presets() {
  const AutoencoderKlSizes first{
      .height = 512, .width = 512, .levels = {128, 256, 512, 512}, .resnets = 2, .scaling = 0.18215};
  const auto of_16_channels = [&](double scaling, double shift) {
    AutoencoderKlSizes own = first;
    own.height = own.width = 1024;
    own.latent_channels = 16;
    own.scaling = scaling, own.shift = shift;
    own.quant_conv = own.post_quant_conv = false;
    return own;
  };
  return {preset("autoencoder-kl", first), preset("autoencoder-kl-sd3", of_16_channels(1.5305, 0.0609)),
          preset("autoencoder-kl-flux", of_16_channels(0.3611, 0.1159)),
          preset("autoencoder-kl-tiny",
                 {.height = 32, .width = 32, .levels = {16, 32, 64}, .resnets = 1, .latent_channels = 4, .groups = 8})};
}

}  // namespace autoencoder_kl

Architecture autoencoder_kl_architecture() {
  return {.name = "autoencoder_kl",
          .own = AutoencoderKlSizes{},
          .presets = autoencoder_kl::presets(),
          .make = autoencoder_kl::make,
          .task = autoencoder_kl::task,
          .unused = {"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "positions"},
          .settle = autoencoder_kl::settle,
          .diffusers = {.class_name = "AutoencoderKL",
                        .part = "vae",
                        .names = autoencoder_kl_diffusers_names,
                        .from_json = autoencoder_kl_from_diffusers,
                        .to_json = autoencoder_kl_to_diffusers,
                        .old_endings = autoencoder_kl_old_endings()}};
}

}  // namespace colossal::models
