#include "colossal/models/families/hunyuan_video_vae.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_kl_parts.h"
#include "colossal/models/built_in.h"
#include "colossal/models/causal_ends.h"
#include "colossal/models/causal_resnet.h"
#include "colossal/models/clip_sizes.h"
#include "colossal/models/task.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/clip_memory.h"
#include "colossal/nn/head_projections.h"
#include "colossal/ops/attention/attention.h"

namespace colossal::models {

void HunyuanVideoVaeSizes::fields(Fields& f) {
  constexpr int64_t kMaxSide = 1 << 16;
  f.integer("frames", frames, "frames", "frames of the clips in training, 4 k + 1", 1, kMaxSide);
  f.integer("height", height, "pixels", "height of the clips in training", 1, kMaxSide);
  f.integer("width", width, "pixels", "width of the clips in training", 1, kMaxSide);
  f.integer("channels", channels, "channels", "number of channels of a frame", 1, kMaxSize);
  f.integers("levels", levels, "features", "features of each level", 1, kMaxSize);
  f.integer("resnets", resnets, "", "ResNets of each level of the encoder; the decoder has one more", 1, 1 << 10);
  f.integer("latent_channels", latent_channels, "channels", "number of channels of a latent", 1, kMaxSize);
  f.integer("groups", groups, "", "groups of each norm", 1, kMaxSize);
  f.number("scaling", scaling, "", "factor of latents that a model of noise reads");
  f.integer("factor", factor, "pixels", "pixels of a side for each cell of a latent, a power of 2", 1, kMaxSide);
  f.flag("attention", attention, "cells attend to those of their frame and of earlier ones at the smallest size");
}

namespace hunyuan_video_vae {  // a namespace of its own, because every family has functions of these names

using Kind = HunyuanVideoVaeBlock::Kind;

constexpr int64_t kTimes = 2;  // how often frames are halved

/// Returns how often sides are halved.
int64_t sides_of(const HunyuanVideoVaeSizes& own) { return std::countr_zero(static_cast<uint64_t>(own.factor)); }

/// Adds blocks while it follows the sizes of hidden states.
struct Blocks {
  std::vector<HunyuanVideoVaeBlock> list{};
  int64_t sides = 0, times = 0;
  bool decodes = false;

  void add(Kind kind, int64_t in, int64_t out, const std::string& folder) {
    list.push_back({kind, decodes, sides, times, in, out, folder});
  }
  void add_middle(int64_t features, bool attention, const std::string& folder) {
    add(Kind::Resnet, features, features, folder + "mid_block.resnets.0.");
    if (attention) add(Kind::Attention, features, features, folder + "mid_block.attentions.0.");
    add(Kind::Resnet, features, features, folder + "mid_block.resnets.1.");
  }
  void resample(int64_t features, bool of_sides, bool of_times, const std::string& folder) {
    if (!of_sides && !of_times) return;
    add(decodes ? Kind::Up : Kind::Down, features, features, folder);
    list.back().of_sides = of_sides, list.back().of_times = of_times;
    const int64_t step = decodes ? -1 : 1;
    sides += of_sides ? step : 0, times += of_times ? step : 0;
  }
};

}  // namespace hunyuan_video_vae

std::vector<HunyuanVideoVaeBlock> hunyuan_video_vae_blocks(const HunyuanVideoVaeSizes& own) {
  using hunyuan_video_vae::Kind;
  const auto levels = static_cast<int64_t>(own.levels.size());
  const int64_t last = levels - 1, most = own.levels.back();
  // The last levels but the smallest one change frames, the first ones sides. Both halves count levels in their order.
  const auto changes_sides = [&](int64_t i) { return i < hunyuan_video_vae::sides_of(own); };
  const auto changes_times = [&](int64_t i) { return i >= last - hunyuan_video_vae::kTimes && i < last; };
  hunyuan_video_vae::Blocks blocks;
  int64_t in = own.levels.front();
  for (int64_t i = 0; i < levels; ++i) {
    const std::string folder = concat("encoder.down_blocks.", i, ".");
    const int64_t out = own.levels[i];
    for (int64_t k = 0; k < own.resnets; ++k, in = out)
      blocks.add(Kind::Resnet, in, out, concat(folder, "resnets.", k, "."));
    blocks.resample(out, changes_sides(i), changes_times(i), folder + "downsamplers.0.");
  }
  blocks.add_middle(most, own.attention, "encoder.");
  blocks.add(Kind::Moments, most, own.latent_channels, "encoder.");
  blocks.decodes = true;
  blocks.add(Kind::Latent, own.latent_channels, most, "decoder.");
  blocks.add_middle(most, own.attention, "decoder.");
  in = most;
  for (int64_t i = 0; i < levels; ++i) {
    const std::string folder = concat("decoder.up_blocks.", i, ".");
    const int64_t out = own.levels[last - i];
    for (int64_t k = 0; k <= own.resnets; ++k, in = out)
      blocks.add(Kind::Resnet, in, out, concat(folder, "resnets.", k, "."));
    blocks.resample(out, changes_sides(i), changes_times(i), folder + "upsamplers.0.");
  }
  return blocks.list;
}

namespace hunyuan_video_vae {

constexpr double kEpsilon = 1e-6;

Task task(const ModelShape&) {
  return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "reconstruction"};
}

void check(const HunyuanVideoVaeSizes& own) {
  for (const auto& [name, size] : {std::pair{"frames", own.frames},
                                   {"height", own.height},
                                   {"width", own.width},
                                   {"channels", own.channels},
                                   {"resnets", own.resnets},
                                   {"latent_channels", own.latent_channels},
                                   {"groups", own.groups},
                                   {"factor", own.factor}})
    require(size > 0, "model", name, " must be positive: got ", size);
  require(std::has_single_bit(static_cast<uint64_t>(own.factor)), "model", "factor must be a power of 2: got ",
          own.factor);
  const auto levels = static_cast<int64_t>(own.levels.size());
  require(levels > std::max(kTimes, sides_of(own)) && levels <= 16, "model", "levels must be the features of ",
          std::max(kTimes, sides_of(own)) + 1, " to 16 levels, more than sides or frames are halved: got ", levels,
          " numbers; set model.levels or model.factor");
  for (const int64_t features : own.levels)
    require(features > 0 && features % own.groups == 0, "model", "groups must divide the features of each level: got ",
            own.groups, " and ", features, "; set model.groups or model.levels");
  check_clip_sizes({own.frames, own.height, own.width}, own.factor, int64_t{1} << kTimes);
  require(own.scaling != 0, "model", "scaling must differ from 0: got 0; set model.scaling");
}

/// Sets all sizes that families share: they follow from the keys of this one.
void settle(ModelShape& s) {
  const auto own = s.own.as<HunyuanVideoVaeSizes>();
  check(own);
  require(s.dropout == 0, "model", "a hunyuan_video_vae has no dropout: got ", s.dropout, "; set model.dropout = 0");
  const std::vector<HunyuanVideoVaeBlock> blocks = hunyuan_video_vae_blocks(own);
  s.hidden = own.levels.back();
  s.layers = static_cast<int64_t>(blocks.size());
  s.positions = own.frames * own.height * own.width;
  s.norm_epsilon = kEpsilon;
  s.tied = false;
  s.set(AutoencoderSizes{
      .channels = own.latent_channels,
      .factor = own.factor,
      .scaling = own.scaling,
      .shift = 0,
      .encoder_blocks = std::count_if(blocks.begin(), blocks.end(), [](const auto& b) { return !b.decodes; }),
      .pixel_channels = own.channels,
      .height = own.height,
      .width = own.width,
      .frames = own.frames,
      .frame_factor = int64_t{1} << kTimes,
      .rounds_up = true});
}

/// Returns the sizes of hidden states whose sides and frames have been halved so often. Halves are rounded up.
ClipSize size_at(const HunyuanVideoVaeSizes& own, int64_t sides, int64_t times, bool decodes,
                 const tensor::Batch& batch) {
  const auto [clip, is_latent] = clip_of(batch);
  const auto halved = [](int64_t size, int64_t count) { return ((size - 1) >> count) + 1; };
  const int64_t most = sides_of(own);
  const auto side = [&](int64_t size) {
    if (!decodes) return halved(size, sides);
    return (is_latent ? size : halved(size, most)) << (most - sides);
  };
  const int64_t latents = is_latent ? clip.frames : halved(clip.frames, kTimes);
  return {decodes ? ((latents - 1) << (kTimes - times)) + 1 : halved(clip.frames, times),
          {side(clip.picture.height), side(clip.picture.width)}};
}

CausalStyle style_of(const HunyuanVideoVaeSizes& own) { return {.groups = {own.groups, kEpsilon}, .replicates = true}; }

/// Attention of each cell, with one head of all features, to the cells of its frame and of earlier ones.
class FrameAttention {
 public:
  FrameAttention(int64_t features, const std::string& name, const CausalStyle& style, nn::Layers& make)
      : FrameAttention({features, 1, 1, features}, autoencoder_kl_kernel(features, 1).deviation, name, style, make) {}

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const at::Tensor normed = norm_->forward(x, step).flatten(1, 2);
    const nn::ClipPass* pass = step.parts.find<nn::ClipPass>();
    if (pass && pass->memory->is_idle()) return x;
    const nn::Heads heads = qkv_->forward(normed, step);
    at::Tensor keys = at::cat({heads.k, heads.v}, 3);  // [B, cells, 1, 2 features]
    if (pass) {
      const at::Tensor earlier = pass->memory->carried(this);
      if (earlier.defined()) keys = at::cat({earlier, keys}, 1);
      pass->memory->carry(this, keys);
    }
    const at::Tensor all = keys.transpose(1, 2);
    const std::vector<at::Tensor> kv = all.chunk(2, 3);
    const int64_t cells = x.size(2), frames = x.size(1), earlier = all.size(2) - frames * cells;
    std::vector<at::Tensor> results;
    for (int64_t frame = 0; frame < frames; ++frame) {
      const int64_t read = earlier + (frame + 1) * cells;
      const at::Tensor q = heads.q.narrow(1, frame * cells, cells).transpose(1, 2);
      results.push_back(ops::attention(q, kv[0].narrow(2, 0, read), kv[1].narrow(2, 0, read), {.causal = false})
                            .transpose(1, 2)
                            .flatten(2));
    }
    return x + out_->forward({at::cat(results, 1)}, step).view(x.sizes());
  }

 private:
  FrameAttention(const nn::AttentionShape& shape, double deviation, const std::string& name, const CausalStyle& style,
                 nn::Layers& make)
      : norm_(make.clip_norm(name + ".norm", shape.hidden, style.groups)),
        qkv_(make.heads(name + ".attention.qkv", shape, {.deviation = deviation})),
        out_(make.from_heads(name + ".attention.out", shape, {.deviation = deviation})) {}

  std::unique_ptr<nn::ClipNorm> norm_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::OutputProjection> out_;
};

/// A convolution that halves sides and frames, or that follows their doubling.
class Resampling {
 public:
  Resampling(const HunyuanVideoVaeSizes& own, const HunyuanVideoVaeBlock& b, const std::string& name, nn::Layers& make)
      : of_sides_(b.of_sides), of_times_(b.of_times), doubles_(b.decodes) {
    nn::CausalOptions options = style_of(own).kernel(b.in, 3);
    if (!doubles_) options.stride = of_sides_ ? 2 : 1, options.frame_stride = of_times_ ? 2 : 1;
    conv_ = make.causal_convolution(name + ".conv", b.in, b.out, options);
  }

  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) const {
    if (!doubles_) return conv_->forward(x, size, step);
    const ops::PictureSize larger{size.height << of_sides_, size.width << of_sides_};
    return conv_->forward(doubled(x, size, larger, step), larger, step);
  }

 private:
  at::Tensor doubled(const at::Tensor& x, const ops::PictureSize& size, const ops::PictureSize& larger,
                     const nn::ForwardContext& step) const {
    at::Tensor y = x;
    if (of_sides_)
      y = ops::enlarged(x.unflatten(2, {size.height, size.width}).flatten(0, 1), larger)
              .flatten(1, 2)
              .unflatten(0, {x.size(0), x.size(1)});
    if (!of_times_) return y;
    // The first frame of a clip stays alone.
    const nn::ClipPass* pass = step.parts.find<nn::ClipPass>();
    const bool begins = !pass || !pass->memory->carried(this).defined();
    if (pass && begins) pass->memory->carry(this, at::empty({0}, x.options()));
    const int64_t alone = begins ? 1 : 0, others = y.size(1) - alone;
    const at::Tensor twice = y.narrow(1, alone, others).unsqueeze(2).expand({-1, -1, 2, -1, -1}).flatten(1, 2);
    return alone > 0 ? at::cat({y.narrow(1, 0, 1), twice}, 1) : twice;
  }

  bool of_sides_, of_times_, doubles_;
  std::unique_ptr<nn::ClipConvolution> conv_;
};

/// Makes the block of that description.
Block block_of(const HunyuanVideoVaeSizes& own, const HunyuanVideoVaeBlock& b, const std::string& name,
               nn::Layers& make) {
  const auto here = [own, b](const nn::ForwardContext& step) {
    return size_at(own, b.sides, b.times, b.decodes, *step.batch).picture;
  };
  constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments,
                kLatent = AutoencoderStates::latent;
  const auto of_hidden = [&](const auto& layer) {
    return Block(
        [=](const at::Tensor& x, const nn::ForwardContext& step) { return layer->forward(x, here(step), step); });
  };
  switch (b.kind) {
    case Kind::Resnet:
      return of_hidden(std::make_shared<const CausalResnet>(name, b.in, b.out, style_of(own), make));
    case Kind::Attention: {
      const auto layer = std::make_shared<const FrameAttention>(b.in, name, style_of(own), make);
      return Block([=](const at::Tensor& x, const nn::ForwardContext& step) { return layer->forward(x, step); });
    }
    case Kind::Moments: {
      const auto layer = std::make_shared<const CausalMoments>(
          name, CausalMoments::Sizes{.in = own.levels.back(), .latent = own.latent_channels, .side = 3}, style_of(own),
          make);
      return {{kHidden}, {kMoments, kLatent}, [=](States& states, const nn::ForwardContext& step) {
                layer->forward(states, here(step), step);
              }};
    }
    case Kind::Latent: {
      const auto layer =
          std::make_shared<const CausalLatent>(name, own.latent_channels, own.levels.back(), style_of(own), make);
      return {{kLatent}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
                states[kHidden] = layer->forward(states[kLatent], here(step), step);
              }};
    }
    default:
      return of_hidden(std::make_shared<const Resampling>(own, b, name, make));
  }
}

/// The hidden state has the size and the features that a block leaves.
std::vector<State> states_of(const HunyuanVideoVaeSizes& own, const std::vector<HunyuanVideoVaeBlock>& blocks,
                             at::ScalarType exact) {
  const auto hidden = [own, blocks](const tensor::Batch& batch, int64_t block) -> ClipState {
    if (block < 0) return {size_at(own, 0, 0, false, batch), own.levels.front()};
    const HunyuanVideoVaeBlock& b = blocks.at(std::min(block, static_cast<int64_t>(blocks.size()) - 1));
    const int64_t step = b.decodes ? -1 : 1;
    return {size_at(own, b.sides + (b.of_sides ? step : 0), b.times + (b.of_times ? step : 0), b.decodes, batch),
            b.out};
  };
  const auto latent = [own](const tensor::Batch& batch) { return size_at(own, sides_of(own), kTimes, true, batch); };
  return clip_states(hidden, latent, own.latent_channels, exact);
}

Model make(const ModelShape& s, nn::Layers& layers) {
  check_whole_clips("hunyuan_video_vae", s.hidden, layers);
  const auto own = s.own.as<HunyuanVideoVaeSizes>();
  const std::vector<HunyuanVideoVaeBlock> blocks = hunyuan_video_vae_blocks(own);
  const at::ScalarType dtype = layers.parameters().options().dtype, exact = at::promote_types(dtype, at::kFloat);
  constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments;
  Model model;
  model.fields = {"images"};
  model.states = states_of(own, blocks, exact);
  const nn::FieldPart part = layers.field_part();
  const std::shared_ptr<nn::ClipConvolution> input =
      layers.causal_convolution("input", own.channels, own.levels.front(), style_of(own).kernel(own.channels, 3));
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return input->forward(as_clip_pixels(part(batch.field("images"), step)).to(dtype),
                          size_at(own, 0, 0, false, batch).picture, step);
  };
  for (size_t i = 0; i < blocks.size(); ++i)
    model.blocks.push_back(block_of(own, blocks[i], concat("blocks.", i), layers));
  const std::shared_ptr<nn::ClipNorm> norm = layers.clip_norm("norm", own.levels.front(), style_of(own).groups);
  nn::CausalOptions last = style_of(own).kernel(own.levels.front(), 3);
  last.is_exact = true;
  const std::shared_ptr<nn::ClipConvolution> head =
      layers.causal_convolution("head", own.levels.front(), own.channels, last);
  // Losses read the moments too, which the norm only passes on.
  model.norm = Block({kHidden, kMoments}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
    const at::Tensor y = at::silu(norm->forward(states[kHidden], step));
    states[kHidden] = head->forward(y, size_at(own, 0, 0, true, *step.batch).picture, step).flatten(1, 2);
  });
  return model;
}

Preset preset(const char* name, const HunyuanVideoVaeSizes& own) {
  ModelShape shape{.tied = false, .own = own};
  settle(shape);
  return {name, shape};
}

}  // namespace hunyuan_video_vae

Architecture hunyuan_video_vae_architecture() {
  using hunyuan_video_vae::preset;
  return {.name = "hunyuan_video_vae",
          .own = HunyuanVideoVaeSizes{},
          .presets = {preset("hunyuan-video-vae",
                             {.frames = 17, .height = 256, .width = 256, .levels = {128, 256, 512, 512}}),
                      preset("hunyuan-video-vae-tiny", {.frames = 5,
                                                        .height = 16,
                                                        .width = 16,
                                                        .levels = {8, 16, 16},
                                                        .resnets = 1,
                                                        .latent_channels = 4,
                                                        .groups = 4,
                                                        .factor = 4})},
          .make = hunyuan_video_vae::make,
          .task = hunyuan_video_vae::task,
          .unused = {"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "positions"},
          .settle = hunyuan_video_vae::settle,
          .diffusers = hunyuan_video_vae_folder()};
}

}  // namespace colossal::models
