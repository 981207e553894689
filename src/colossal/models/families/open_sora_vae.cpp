#include "colossal/models/families/open_sora_vae.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/built_in.h"
#include "colossal/models/causal_ends.h"
#include "colossal/models/causal_resnet.h"
#include "colossal/models/clip_sizes.h"
#include "colossal/models/task.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"

namespace colossal::models {

AutoencoderKlSizes OpenSoraVaeSizes::of_frames() const {
  return {.height = height,
          .width = width,
          .levels = levels,
          .resnets = resnets,
          .latent_channels = channels,
          .groups = groups,
          .scaling = scaling};
}

int64_t OpenSoraVaeSizes::frame_factor() const {
  return int64_t{1} << std::count_if(halves.begin(), halves.end(), [](int64_t half) { return half != 0; });
}

void OpenSoraVaeSizes::fields(Fields& f) {
  constexpr int64_t kMaxSide = 1 << 16;
  f.integer("frames", frames, "frames", "frames of the clips in training, at most a chunk", 1, kMaxSide);
  f.integer("height", height, "pixels", "height of the clips in training", 1, kMaxSide);
  f.integer("width", width, "pixels", "width of the clips in training", 1, kMaxSide);
  f.integers("levels", levels, "features", "features of each level of the autoencoder of frames", 1, kMaxSize);
  f.integer("resnets", resnets, "", "ResNets of each level of its encoder; its decoder has one more", 1, 1 << 10);
  f.integer("channels", channels, "channels", "number of channels of latents", 1, kMaxSize);
  f.number("scaling", scaling, "", "factor of the latents of frames");
  f.integer("filters", filters, "features", "features of the autoencoder in time, times a multiplier", 1, kMaxSize);
  f.integers("multipliers", multipliers, "", "factor of the features of each of its levels", 1, kMaxSize);
  f.integers("halves", halves, "", "1 = frames are halved after that level; all levels but the last", 0, 1);
  f.integer("time_resnets", time_resnets, "", "ResNets of each of its levels, and at its smallest size", 1, 1 << 10);
  f.integer("groups", groups, "", "groups of each norm", 1, kMaxSize);
  f.integer("chunk", chunk, "frames", "frames that are encoded and decoded on their own", 1, kMaxSide);
  f.numbers("shift", shift, "", "mean of each channel of a latent, which a model of noise does not read");
  f.numbers("scale", scale, "", "deviation of each channel of a latent, by which it is divided");
}

std::vector<OpenSoraVaeBlock> open_sora_vae_blocks(const OpenSoraVaeSizes& own) {
  using Kind = OpenSoraVaeBlock::Kind;
  const std::vector<AutoencoderKlBlock> of_frames = autoencoder_kl_blocks(own.of_frames());
  const auto levels = static_cast<int64_t>(own.multipliers.size());
  std::vector<OpenSoraVaeBlock> blocks;
  int64_t times = 0;
  const auto add_frames = [&](bool decodes) {
    for (const AutoencoderKlBlock& b : of_frames)
      if (b.decodes == decodes)
        blocks.push_back({Kind::Frames, decodes, 0, b.in, b.out, "spatial_vae.module." + b.folder, b});
  };
  const auto add = [&](Kind kind, bool decodes, int64_t in, int64_t out, const std::string& name) {
    const char* half = decodes ? "temporal_vae.decoder." : "temporal_vae.encoder.";
    blocks.push_back({kind, decodes, times, in, out, half + name, {}});
  };
  const auto features = [&](int64_t level) { return own.filters * own.multipliers[static_cast<size_t>(level)]; };
  const auto add_last = [&](bool decodes) {
    for (int64_t i = 0; i < own.time_resnets; ++i)
      add(Kind::Resnet, decodes, features(levels - 1), features(levels - 1), concat("res_blocks.", i, "."));
  };
  const auto halves = [&](int64_t level) { return own.halves[static_cast<size_t>(level)] != 0; };

  add_frames(false);
  add(Kind::Input, false, own.channels, own.filters, "");
  int64_t in = own.filters;
  for (int64_t level = 0; level < levels; ++level) {
    for (int64_t i = 0; i < own.time_resnets; ++i, in = features(level))
      add(Kind::Resnet, false, in, features(level), concat("block_res_blocks.", level, ".", i, "."));
    if (level + 1 == levels || !halves(level)) continue;
    add(Kind::Down, false, in, in, concat("conv_blocks.", level, "."));
    ++times;
  }
  add_last(false);
  add(Kind::Moments, false, in, own.channels, "");
  add(Kind::Latent, true, own.channels, in, "");
  add_last(true);
  for (int64_t level = levels - 1; level >= 0; --level) {
    for (int64_t i = 0; i < own.time_resnets; ++i, in = features(level))
      add(Kind::Resnet, true, in, features(level), concat("block_res_blocks.", level, ".", i, "."));
    if (level == 0 || !halves(level - 1)) continue;
    add(Kind::Up, true, in, in, concat("conv_blocks.", level - 1, "."));
    --times;
  }
  add(Kind::Output, true, in, own.channels, "");
  add_frames(true);
  return blocks;
}

namespace open_sora_vae {  // a namespace of its own, because every family has functions of these names

using Kind = OpenSoraVaeBlock::Kind;

constexpr double kTimeEpsilon = 1e-5;
constexpr int64_t kPixelChannels = 3;

Task task(const ModelShape&) {
  return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "reconstruction"};
}

void check(const OpenSoraVaeSizes& own) {
  for (const auto& [name, size] : {std::pair{"frames", own.frames},
                                   {"height", own.height},
                                   {"width", own.width},
                                   {"resnets", own.resnets},
                                   {"channels", own.channels},
                                   {"filters", own.filters},
                                   {"time_resnets", own.time_resnets},
                                   {"groups", own.groups},
                                   {"chunk", own.chunk}})
    require(size > 0, "model", name, " must be positive: got ", size);
  require(!own.levels.empty() && own.levels.size() <= 16, "model",
          "levels must be the features of 1 to 16 levels: got ", own.levels.size(), " numbers");
  require(!own.multipliers.empty() && own.multipliers.size() <= 16, "model",
          "multipliers must be those of 1 to 16 levels: got ", own.multipliers.size(), " numbers");
  require(own.halves.size() + 1 == own.multipliers.size(), "model",
          "halves must have a number for each level but the last: got ", own.halves.size(), " for ",
          own.multipliers.size(), " levels; set model.halves");
  for (const int64_t features : own.levels)
    require(features > 0 && features % own.groups == 0, "model", "groups must divide the features of each level: got ",
            own.groups, " and ", features, "; set model.groups or model.levels");
  require(own.filters % own.groups == 0, "model", "groups must divide filters: got ", own.groups, " and ", own.filters,
          "; set model.groups or model.filters");
  require(own.frames <= own.chunk, "model", "frames must be at most the ", own.chunk, " of a chunk: got ", own.frames,
          "; longer clips are encoded and decoded by chunks");
  const auto channels = static_cast<size_t>(own.channels);
  require(own.shift.size() == channels && own.scale.size() == channels, "model",
          "shift and scale must have a number for each channel: got ", own.shift.size(), " and ", own.scale.size(),
          " for ", channels, "; set model.shift and model.scale");
  for (const double scale : own.scale) require(scale != 0, "model", "scale must differ from 0: got 0; set model.scale");
  require(own.scaling != 0, "model", "scaling must differ from 0: got 0; set model.scaling");
}

/// Sets all sizes that families share: they follow from the keys of this one.
void settle(ModelShape& s) {
  const auto own = s.own.as<OpenSoraVaeSizes>();
  check(own);
  const int64_t factor = own.of_frames().factor();
  check_clip_sizes({own.frames, {own.height, own.width}}, factor, 1);
  require(s.dropout == 0, "model", "an open_sora_vae has no dropout: got ", s.dropout, "; set model.dropout = 0");
  const std::vector<OpenSoraVaeBlock> blocks = open_sora_vae_blocks(own);
  const auto first = [&](const auto& is) { return std::find_if(blocks.begin(), blocks.end(), is) - blocks.begin(); };
  s.hidden = own.levels.back();
  s.layers = static_cast<int64_t>(blocks.size());
  s.positions = own.frames * own.height * own.width;
  s.norm_epsilon = kTimeEpsilon;
  s.tied = false;
  s.set(FrameAutoencoder{own.of_frames()});
  s.set(AutoencoderSizes{.channels = own.channels,
                         .factor = factor,
                         .scaling = 1,
                         .shift = 0,
                         .encoder_blocks = first([](const auto& b) { return b.decodes; }),
                         .pixel_channels = kPixelChannels,
                         .height = own.height,
                         .width = own.width,
                         .frames = own.frames,
                         .frame_factor = own.frame_factor(),
                         .chunk_frames = own.chunk,
                         .frame_blocks = first([](const auto& b) { return b.kind != Kind::Frames; }),
                         .frames_from = first([](const auto& b) { return b.decodes && b.kind == Kind::Frames; }),
                         .means = own.shift,
                         .deviations = own.scale});
}

/// Returns the frames of pixels of the clips of a step.
int64_t frames_of(const OpenSoraVaeSizes& own, const nn::ForwardContext& step) {
  const auto [clip, is_latent] = clip_of(*step.batch);
  const auto* frames = step.parts.find<ClipFrames>();
  if (frames) return frames->count;
  return is_latent ? std::min(own.chunk, (clip.frames - 1) * own.frame_factor() + 1) : clip.frames;
}

/// Returns the sizes of frames at that level of the autoencoder of frames.
ops::PictureSize picture_at(const OpenSoraVaeSizes& own, int64_t level, bool decodes, const tensor::Batch& batch) {
  const auto [clip, is_latent] = clip_of(batch);
  const auto last = static_cast<int64_t>(own.levels.size()) - 1;
  const auto side = [&, latent = is_latent](int64_t size) {
    if (latent) return size << (last - level);
    return decodes ? size >> last << (last - level) : size >> level;
  };
  return {side(clip.picture.height), side(clip.picture.width)};
}

/// Returns the sizes of frames that a block of either autoencoder reads, or leaves.
ops::PictureSize picture_of(const OpenSoraVaeSizes& own, const OpenSoraVaeBlock& b, bool after,
                            const tensor::Batch& batch) {
  const auto last = static_cast<int64_t>(own.levels.size()) - 1;
  const int64_t level = b.kind != Kind::Frames ? last : after ? b.of_frames.level_after() : b.of_frames.level;
  return picture_at(own, level, b.decodes, batch);
}

CausalStyle style_of(const OpenSoraVaeSizes& own) { return {.groups = {own.groups, kTimeEpsilon}, .bias = false}; }

/// A block of the autoencoder of frames. That which ends its encoder gives the scaled mean, and that which begins its
/// decoder reads it.
class OfFrames {
 public:
  OfFrames(const OpenSoraVaeSizes& own, const AutoencoderKlBlock& b, const std::string& name, nn::Layers& make)
      : kind_(b.kind),
        channels_(own.channels),
        scaling_(own.scaling),
        layer_(autoencoder_kl_layer(own.of_frames(), b, name, make)) {}

  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) const {
    using OfFrame = AutoencoderKlBlock::Kind;
    const at::Tensor frames = x.flatten(0, 1);
    at::Tensor y = layer_(kind_ == OfFrame::Latent ? frames / scaling_ : frames, size, step);
    if (kind_ == OfFrame::Moments) y = y.narrow(2, 0, channels_) * scaling_;
    return y.unflatten(0, {x.size(0), x.size(1)});
  }

 private:
  AutoencoderKlBlock::Kind kind_;
  int64_t channels_;
  double scaling_;
  AutoencoderKlLayer layer_;
};

/// Returns the frames that fill a chunk up.
int64_t filling(const OpenSoraVaeSizes& own, int64_t frames) {
  const int64_t factor = own.frame_factor();
  return (factor - frames % factor) % factor;
}

/// The beginning of the encoder in time.
class Input {
 public:
  Input(const OpenSoraVaeSizes& own, const OpenSoraVaeBlock& b, const std::string& name, nn::Layers& make) : own_(own) {
    nn::CausalOptions options = style_of(own).kernel(b.in, 3);
    options.bias = false;
    conv_ = make.causal_convolution(name + ".conv", b.in, b.out, options);
  }
  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) const {
    require(x.size(1) <= own_.chunk, "model", "a pass must read at most the ", own_.chunk, " frames of a chunk: got ",
            x.size(1), "; models::encode_in_chunks() takes longer clips");
    return conv_->forward(at::constant_pad_nd(x, {0, 0, 0, 0, filling(own_, x.size(1)), 0}), size, step);
  }

 private:
  OpenSoraVaeSizes own_;
  std::unique_ptr<nn::ClipConvolution> conv_;
};

/// The convolution that halves the frames, with one frame of zeros in front, or that doubles them: it gives each frame
/// the features of two, of which those of one feature are neighbours.
class TimeResampling {
 public:
  TimeResampling(const OpenSoraVaeSizes& own, const OpenSoraVaeBlock& b, const std::string& name, nn::Layers& make)
      : doubles_(b.decodes), out_(b.out) {
    nn::CausalOptions options = style_of(own).kernel(b.in, 3);
    if (!doubles_) options.frame_stride = 2, options.front = 1;
    conv_ = make.causal_convolution(name + ".conv", b.in, doubles_ ? 2 * b.out : b.out, options);
  }
  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) const {
    const at::Tensor y = conv_->forward(x, size, step);
    return doubles_ ? y.unflatten(3, {out_, 2}).permute({0, 1, 4, 2, 3}).flatten(1, 2).contiguous() : y;
  }

 private:
  bool doubles_;
  int64_t out_;
  std::unique_ptr<nn::ClipConvolution> conv_;
};

/// The end of the decoder in time.
class Output {
 public:
  Output(const OpenSoraVaeSizes& own, const OpenSoraVaeBlock& b, const std::string& name, nn::Layers& make)
      : own_(own),
        norm_(make.clip_norm(name + ".norm", b.in, style_of(own).groups)),
        conv_(make.causal_convolution(name + ".conv", b.in, b.out, style_of(own).kernel(b.in, 3))) {}
  at::Tensor forward(const at::Tensor& x, const ops::PictureSize& size, const nn::ForwardContext& step) const {
    const at::Tensor y = conv_->forward(at::silu(norm_->forward(x, step)), size, step);
    const int64_t frames = frames_of(own_, step);
    return y.narrow(1, y.size(1) - frames, frames).contiguous();
  }

 private:
  OpenSoraVaeSizes own_;
  std::unique_ptr<nn::ClipNorm> norm_;
  std::unique_ptr<nn::ClipConvolution> conv_;
};

/// Makes the block of that description.
Block block_of(const OpenSoraVaeSizes& own, const OpenSoraVaeBlock& b, const std::string& name, nn::Layers& make) {
  constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments,
                kLatent = AutoencoderStates::latent;
  const auto here = [own, b](const nn::ForwardContext& step) { return picture_of(own, b, false, *step.batch); };
  const auto of_hidden = [&](const auto& layer) {
    return Block(
        [=](const at::Tensor& x, const nn::ForwardContext& step) { return layer->forward(x, here(step), step); });
  };
  switch (b.kind) {
    case Kind::Frames:
      return of_hidden(std::make_shared<const OfFrames>(own, b.of_frames, name, make));
    case Kind::Input:
      return of_hidden(std::make_shared<const Input>(own, b, name, make));
    case Kind::Resnet:
      return of_hidden(std::make_shared<const CausalResnet>(name, b.in, b.out, style_of(own), make));
    case Kind::Moments: {
      const auto layer = std::make_shared<const CausalMoments>(
          name, CausalMoments::Sizes{.in = b.in, .latent = b.out, .side = 1}, style_of(own), make);
      return {{kHidden}, {kMoments, kLatent}, [=](States& states, const nn::ForwardContext& step) {
                layer->forward(states, here(step), step);
              }};
    }
    case Kind::Latent: {
      const auto layer = std::make_shared<const CausalLatent>(name, b.in, b.out, style_of(own), make);
      return {{kLatent}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
                states[kHidden] = layer->forward(states[kLatent], here(step), step);
              }};
    }
    case Kind::Output:
      return of_hidden(std::make_shared<const Output>(own, b, name, make));
    default:
      return of_hidden(std::make_shared<const TimeResampling>(own, b, name, make));
  }
}

/// The hidden state has the size and the features that a block leaves.
std::vector<State> states_of(const OpenSoraVaeSizes& own, const std::vector<OpenSoraVaeBlock>& blocks,
                             at::ScalarType exact) {
  const int64_t factor = own.frame_factor();
  const auto frames = [own](const tensor::Batch& batch) {
    return frames_of(own, {.batch = std::make_shared<const tensor::Batch>(batch)});
  };
  const auto latents = [=](const tensor::Batch& batch) { return (frames(batch) + factor - 1) / factor; };
  const auto hidden = [=](const tensor::Batch& batch, int64_t block) -> ClipState {
    if (block < 0) return {{frames(batch), picture_at(own, 0, false, batch)}, own.levels.front()};
    const OpenSoraVaeBlock& b = blocks.at(std::min(static_cast<size_t>(block), blocks.size() - 1));
    const int64_t times = b.times + (b.kind == Kind::Down ? 1 : b.kind == Kind::Up ? -1 : 0);
    const bool is_filled = b.kind != Kind::Frames && b.kind != Kind::Output;
    const bool ends = b.kind == Kind::Frames && b.of_frames.kind == AutoencoderKlBlock::Kind::Moments;
    return {{is_filled ? latents(batch) * (factor >> times) : frames(batch), picture_of(own, b, true, batch)},
            ends ? own.channels : b.out};
  };
  const auto latent = [=](const tensor::Batch& batch) -> ClipSize {
    return {latents(batch), picture_at(own, static_cast<int64_t>(own.levels.size()) - 1, true, batch)};
  };
  return clip_states(hidden, latent, own.channels, exact);
}

/// Writes a number for each channel into a buffer, which the folder has beside the keys of its config.
void declare_numbers(const char* name, const std::vector<double>& numbers, nn::Parameters& parameters) {
  const auto count = static_cast<int64_t>(numbers.size());
  const at::Tensor& value = parameters.buffer(name, tensor::ShardSpec::whole({1, count, 1, 1, 1}), at::kFloat).value;
  for (int64_t i = 0; value.defined() && i < count; ++i) value.select(1, i).fill_(numbers[static_cast<size_t>(i)]);
}

Model make(const ModelShape& s, nn::Layers& layers) {
  check_whole_clips("open_sora_vae", s.hidden, layers);
  const auto own = s.own.as<OpenSoraVaeSizes>();
  const std::vector<OpenSoraVaeBlock> blocks = open_sora_vae_blocks(own);
  const at::ScalarType exact = at::promote_types(layers.parameters().options().dtype, at::kFloat);
  constexpr int kHidden = AutoencoderStates::hidden, kMoments = AutoencoderStates::moments;
  Model model;
  model.fields = {"images"};
  model.states = states_of(own, blocks, exact);
  declare_numbers("shift", own.shift, layers.parameters());
  declare_numbers("scale", own.scale, layers.parameters());
  const nn::FieldPart part = layers.field_part();
  const int64_t first = own.levels.front();
  const std::shared_ptr<nn::PictureEmbedding> input =
      layers.picture_embedding("input", kPixelChannels, first, 3, autoencoder_kl_kernel(kPixelChannels, 3).deviation);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    at::Tensor clips = part(batch.field("images"), step);
    if (clips.dim() == 4) clips = clips.unsqueeze(2);
    return input->forward(clips.transpose(1, 2).flatten(0, 1), ops::Window::same(3))
        .unflatten(0, {clips.size(0), clips.size(2)});
  };
  for (size_t i = 0; i < blocks.size(); ++i)
    model.blocks.push_back(block_of(own, blocks[i], concat("blocks.", i), layers));
  const std::shared_ptr<nn::GroupNorm> norm =
      layers.group_norm("norm", first, {own.groups, kAutoencoderKlEpsilon}, nn::Place::Outside);
  const std::shared_ptr<nn::Outputs> head =
      layers.outputs("head", first, kPixelChannels, autoencoder_kl_kernel(first, 3));
  // Losses read the moments too, which the norm only passes on.
  model.norm = Block({kHidden, kMoments}, {kHidden}, [=](States& states, const nn::ForwardContext& step) {
    const at::Tensor x = states[kHidden], y = at::silu(norm->forward(x.flatten(0, 1)));
    const nn::Pictures pictures{picture_at(own, 0, true, *step.batch), ops::Window::same(3)};
    states[kHidden] = head->forward(y.to(exact), pictures, step).unflatten(0, {x.size(0), x.size(1)}).flatten(1, 2);
  });
  return model;
}

Preset preset(const char* name, const OpenSoraVaeSizes& own) {
  ModelShape shape{.tied = false, .own = own};
  settle(shape);
  return {name, shape};
}

}  // namespace open_sora_vae

Architecture open_sora_vae_architecture() {
  return {.name = "open_sora_vae",
          .own = OpenSoraVaeSizes{},
          .presets = {open_sora_vae::preset("open-sora-vae-1.2", {}),
                      open_sora_vae::preset("open-sora-vae-tiny", {.frames = 5,
                                                                   .height = 16,
                                                                   .width = 16,
                                                                   .levels = {8, 16},
                                                                   .resnets = 1,
                                                                   .filters = 8,
                                                                   .multipliers = {1, 1, 2},
                                                                   .halves = {1, 1},
                                                                   .time_resnets = 1,
                                                                   .groups = 4,
                                                                   .chunk = 5})},
          .make = open_sora_vae::make,
          .task = open_sora_vae::task,
          .unused = {"hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "positions"},
          .settle = open_sora_vae::settle,
          .hugging_face = open_sora_vae_folder()};
}

}  // namespace colossal::models
