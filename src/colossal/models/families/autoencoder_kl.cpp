#include "colossal/models/families/autoencoder_kl.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_kl_parts.h"
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
  f.flag("force_upcast", force_upcast, "SDXL computes it in fp32 in place of fp16, in which its numbers overflow");
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

namespace autoencoder_kl {  // a namespace of its own, because every family has functions of these names

using Kind = AutoencoderKlBlock::Kind;

constexpr double kEpsilon = kAutoencoderKlEpsilon;

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
  s.set(FloatRange{.exceeds_fp16 = own.force_upcast});
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

/// Makes the block of that description.
Block block_of(const AutoencoderKlSizes& own, const AutoencoderKlBlock& b, const std::string& name, nn::Layers& make) {
  const auto here = [own, b](const nn::ForwardContext& step) { return size_at(own, b.level, b.decodes, *step.batch); };
  constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments,
                kLatent = AutoencoderStates::latent;
  const AutoencoderKlLayer layer = autoencoder_kl_layer(own, b, name, make);
  switch (b.kind) {
    case Kind::Moments:
      return {{kHidden},
              {kMoments, kLatent},
              [=, part = make.field_part()](States& states, const nn::ForwardContext& step) {
                states[kMoments] = autoencoder_kl_moments(layer(states[kHidden], here(step), step));
                states[kLatent] = autoencoder_kl_latent(states[kMoments], part, step);
              }};
    case Kind::Latent:
      return {{kLatent}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
                states[kHidden] = layer(states[kLatent], here(step), step);
              }};
    default:
      return Block([=](const at::Tensor& x, const nn::ForwardContext& step) { return layer(x, here(step), step); });
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
  const std::shared_ptr<nn::PictureEmbedding> input = layers.picture_embedding(
      "input", own.channels, own.levels.front(), 3, autoencoder_kl_kernel(own.channels, 3).deviation);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return input->forward(part(batch.field("images"), step), ops::Window::same(3));
  };
  for (size_t i = 0; i < blocks.size(); ++i)
    model.blocks.push_back(block_of(own, blocks[i], concat("blocks.", i), layers));
  const std::shared_ptr<nn::GroupNorm> norm =
      layers.group_norm("norm", own.levels.front(), {own.groups, kEpsilon}, nn::Place::Outside);
  const std::shared_ptr<nn::Outputs> head =
      layers.outputs("head", own.levels.front(), own.channels, autoencoder_kl_kernel(own.levels.front(), 3));
  // Losses read the moments too, which the norm only passes on.
  model.norm = Block({kHidden, kMoments}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
    const at::Tensor y = at::silu(norm->forward(states[kHidden]));
    states[kHidden] = head->forward(y.to(exact), {size_at(own, 0, true, *step.batch), ops::Window::same(3)}, step);
  });
  return model;
}

Preset preset(const char* name, const AutoencoderKlSizes& own) {
  ModelShape shape{.tied = false, .own = own};
  settle(shape);
  return {name, shape};
}

/// Returns the autoencoders of Stable Diffusion 1 and 2, of SDXL, of Stable Diffusion 3 and of FLUX, and a toy for
/// small pictures.
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
  AutoencoderKlSizes of_sdxl = first;
  of_sdxl.height = of_sdxl.width = 1024;
  of_sdxl.scaling = 0.13025;
  return {preset("autoencoder-kl", first), preset("autoencoder-kl-sdxl", of_sdxl),
          preset("autoencoder-kl-sd3", of_16_channels(1.5305, 0.0609)),
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
