#include "colossal/models/families/stdit.h"

#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/number_embedder.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/stdit_blocks.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/features.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/nn/tokens.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {

void StditSizes::fields(Fields& f) {
  constexpr int64_t kMaxCells = 1 << 16, kMaxTokens = 1 << 20;
  f.integer("frames", frames, "frames", "frames of the clips or their latents; other batches may have others", 1,
            kMaxCells);
  f.integer("height", height, "cells", "height of the frames or latents; other batches may have others", 1, kMaxCells);
  f.integer("width", width, "cells", "width of the frames or latents; other batches may have others", 1, kMaxCells);
  f.integer("channels", channels, "channels", "number of channels that are read and predicted", 1, kMaxSize);
  f.integer("patch", patch, "cells", "side of a patch", 1, kMaxCells);
  f.flag("spare_outputs", spare_outputs, "the end has as many channels again, which nobody reads");
  f.integer("text", text, "features", "width of the text states", 1, kMaxSize);
  f.integer("tokens", tokens, "tokens", "number of tokens of a caption, with pads", 1, kMaxTokens);
  f.integer("cell", cell, "pixels", "pixels of a side of a cell, by which positions are scaled", 1, kMaxCells);
  f.integer("base_side", base_side, "pixels", "side of the square pictures whose positions are not scaled", 1,
            kMaxCells);
}

namespace stdit {  // a namespace of its own, because every family has functions of these names

constexpr int64_t kEndVectors = 2;      // shift and scale
constexpr double kEnd = 1e-6;           // epsilon
constexpr double kFrequencies = 10000;  // base of the rotary positions of frames

constexpr const char *kFps = "fps", *kUntold = "untold";  // fields

Task task(const ModelShape&) { return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "diffusion"}; }

/// Sets the positions to the number of places.
void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  refuse_free_heads(s, "an STDiT");
  const auto own = s.own.as<StditSizes>();
  require(s.layers % 2 == 0, "model", "layers of an STDiT must be even, for spatial and temporal blocks in turn: got ",
          s.layers, "; set model.layers = ", s.layers + 1);
  require(s.hidden % 4 == 0, "model", "the hidden size of an STDiT must be divisible by 4, for its positions: got ",
          s.hidden, "; set model.hidden");
  require(s.head_dim % 2 == 0, "model", "heads of an STDiT must have an even number of features, which rotate: got ",
          s.head_dim, "; set model.heads");
  require(s.dropout == 0, "model", "an STDiT has no dropout: got ", s.dropout, "; set model.dropout = 0");
  s.positions = stdit_patches(own, {own.height, own.width}).count();
  s.set(AttentionAxes{.two = true});
  s.set(DenoiserSizes{.channels = own.channels,
                      .height = own.height,
                      .width = own.width,
                      .patch = own.patch,
                      .outputs = own.channels,
                      .text = own.text,
                      .target = "flow",
                      .schedule = "linear",
                      .guidance = 7,
                      .captions = {{.preset = own.text == 64     ? "clip-text-tiny"
                                              : own.text == 4096 ? "t5-v1.1-xxl-encoder"
                                                                 : "",
                                    .tokens = own.tokens,
                                    .is_masked = true}},
                      .vae = own.channels == 4 && own.text == 4096 ? "open-sora-vae-1.2" : "",
                      .text_tokens = own.tokens,
                      .frames = own.frames,
                      .unread = own.spare_outputs ? own.channels : 0,
                      .sign = -1,
                      .shift = "open-sora-1",
                      .reads_rate = true,
                      .masks_text = true});
}

/// The patches of the noised clips with fixed positions of their places.
class Patches {
 public:
  Patches(const ModelShape& s, nn::Layers& make)
      : own_(s.own.as<StditSizes>()),
        part_(make.field_part()),
        tokens_(make.own_tokens()),
        features_(make.features(s.hidden, nn::Place::Outside)),
        options_(at::TensorOptions(make.parameters().options().device).dtype(make.parameters().options().dtype)),
        weight_(
            make.vector("patches.weight", {s.hidden, own_.channels, 1, own_.patch, own_.patch},
                        {.init = nn::Init::normal(of_inputs(own_.channels * own_.patch * own_.patch)), .decay = true})),
        bias_(make.vector("patches.bias", {s.hidden}, {})) {}

  /// Returns [b, frames, places, h].
  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const at::Tensor clips = part_(batch.field("noised"), step).to(options_.dtype().toScalarType());
    const ops::PictureSize size = picture_size(batch);
    const nn::PatchShape shape = stdit_patches(own_, size);
    const at::Tensor frames = at::constant_pad_nd(clips.transpose(1, 2).flatten(0, 1),
                                                  {0, shape.width - size.width, 0, shape.height - size.height});
    const nn::Share places = tokens_(step).sequence;
    const at::Tensor patches = places.of(nn::cut_patches(frames, shape), 1, "places"),
                     own = places.of(positions(shape, size), 0, "places");
    const nn::Range here = features_->here();
    const at::Tensor x = nn::linear(patches, weight_->value().flatten(1), bias_->value());
    return (x + own.narrow(1, here.first, here.size)).unflatten(0, {clips.size(0), clips.size(2)});
  }

 private:
  /// Returns the positions of all features, [places, H]. Rows and columns are scaled to those of a square with as many
  /// places, and then by the side of a square with as many pixels.
  at::Tensor positions(const nn::PatchShape& shape, const ops::PictureSize& size) const {
    const std::scoped_lock lock(mutex_);
    if (known_.defined() && known_of_ == size) return known_;
    const double side = std::round(std::sqrt(static_cast<double>(shape.count()))),
                 pixels = static_cast<double>(own_.cell) * std::sqrt(static_cast<double>(size.pixels())),
                 scale = pixels / static_cast<double>(own_.base_side);
    const auto places = [&](int64_t count) {
      return at::arange(count, at::TensorOptions(at::kDouble)) * (side / static_cast<double>(count) / scale);
    };
    known_ = nn::picture_positions(places(shape.rows()), places(shape.columns()), features_->size()).to(options_);
    known_of_ = size;
    return known_;
  }

  StditSizes own_;
  nn::FieldPart part_;
  nn::OwnTokens tokens_;
  std::shared_ptr<const nn::Features> features_;
  at::TensorOptions options_;
  std::unique_ptr<nn::Vector> weight_, bias_;
  mutable std::mutex mutex_;
  mutable at::Tensor known_;  // positions for frames of the size known_of_
  mutable ops::PictureSize known_of_;
};

/// Returns this rank's part of a field that a batch may leave out; undefined without it.
at::Tensor optional_part(const nn::FieldPart& part, const char* name, const nn::ForwardContext& step) {
  return step.batch->find(name).defined() ? part(step.batch->field(name), step) : at::Tensor();
}

/// The vector of the times of a row and of its frame rate, and the vectors that modulate every block.
class Conditioning {
 public:
  Conditioning(const ModelShape& s, nn::Layers& make)
      : part_(make.field_part()),
        of_time_("time", s.hidden,
                 {.first_deviation = glorot(NumberEmbedding().sinusoids, s.hidden),
                  .second_deviation = glorot(s.hidden, s.hidden)},
                 make),
        of_rate_("rate", s.hidden, {.first_deviation = kDeviation}, make),
        modulation_(make.modulation("modulation", s.hidden, kStditVectors)) {}

  /// Writes the condition [b, times, h] and its vectors [b, times, kStditVectors, h].
  void forward(States& states, const nn::ForwardContext& step) const {
    at::Tensor times = part_(step.batch->field("times"), step).unsqueeze(1);
    if (stdit_times(step) > 1) times = at::cat({times, at::zeros_like(times)}, 1);
    const at::Tensor rate = of_rate_.forward(part_(step.batch->field(kFps), step)).unsqueeze(1);
    const at::Tensor condition = of_time_.forward(times) + rate;
    states[kStditCondition] = condition;
    states[kStditModulation] =
        at::cat(modulation_->forward(condition.flatten(0, 1)), 1).unflatten(0, {condition.size(0), -1});
  }

 private:
  nn::FieldPart part_;
  NumberEmbedder of_time_, of_rate_;
  std::unique_ptr<nn::Modulation> modulation_;
};

/// Projected states of captions. Untold rows have the null text, a buffer of the published weights, 0 at the start.
class Caption {
 public:
  Caption(const ModelShape& s, nn::Layers& make)
      : part_(make.field_part()),
        features_(make.features(s.own.as<StditSizes>().text, nn::Place::Outside)),
        dtype_(make.parameters().options().dtype) {
    const auto own = s.own.as<StditSizes>();
    null_ = &make.parameters().buffer("null_text", tensor::ShardSpec::whole({own.tokens, own.text}), dtype_);
    up_ = make.expand("text.up", own.text, s.hidden, {.deviation = glorot(own.text, s.hidden)});
    down_ = make.contract("text.down", s.hidden, s.hidden, {.deviation = glorot(s.hidden, s.hidden)});
  }

  at::Tensor forward(const nn::ForwardContext& step) const {
    at::Tensor text = part_(step.batch->field("text"), step).to(dtype_);
    const at::Tensor untold = optional_part(part_, kUntold, step);
    if (untold.defined()) {
      require(text.size(1) <= null_->value.size(0), "data", "captions must have at most the ", null_->value.size(0),
              " tokens of the null text (model.tokens): got ", text.size(1));
      const nn::Range here = features_->here();
      const at::Tensor none = null_->value.narrow(0, 0, text.size(1)).narrow(1, here.first, here.size);
      text = stdit_choose(untold.view({-1, 1, 1}), none, text);
    }
    return down_->forward(up_->forward(text).map(ops::gelu, step));
  }

 private:
  nn::FieldPart part_;
  std::shared_ptr<const nn::Features> features_;
  at::ScalarType dtype_;
  nn::Buffer* null_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
};

/// The modulated norm and the projection to the patches of the prediction.
class End {
 public:
  End(const ModelShape& s, nn::Layers& make)
      : modulation_("norm.modulation", s.hidden, kEndVectors, make),
        norm_(make.layer_norm("norm", s.hidden, {.epsilon = kEnd, .affine = false})) {
    const auto own = s.own.as<StditSizes>();
    const int64_t channels = own.channels * (own.spare_outputs ? 2 : 1), out = own.patch * own.patch * channels;
    outputs_ = make.outputs("head", s.hidden, out, {.deviation = glorot(s.hidden, out)});
  }

  /// Returns [B, places, frames, features of a patch].
  at::Tensor forward(const States& states, const nn::ForwardContext& step) const {
    const std::vector<at::Tensor> m = modulation_.forward(states[kStditCondition].unsqueeze(2), step);
    const at::Tensor y = nn::modulated(norm_->forward(states[kStditHidden]), m[0], m[1]).transpose(1, 2);
    return outputs_->forward(y.to(at::promote_types(y.scalar_type(), at::kFloat)), step);
  }

 private:
  StditFrameModulation modulation_;
  std::unique_ptr<nn::Norm> norm_;
  std::unique_ptr<nn::Outputs> outputs_;
};

std::vector<State> states_of(const ModelShape& s) {
  using tensor::Dim;
  using Sizes = std::vector<int64_t>;
  const auto state = [](const char* name, std::vector<Dim> dims, auto sizes) -> State {
    return {.name = name, .dims = std::move(dims), .sizes = [sizes](const nn::ForwardContext& step, int64_t) -> Sizes {
              return sizes(step);
            }};
  };
  const int64_t hidden = s.hidden;
  return {state("hidden", {Dim::Row, Dim::Other, Dim::Token, Dim::Feature},
                [hidden, own = s.own.as<StditSizes>()](const nn::ForwardContext& step) -> Sizes {
                  const int64_t places = stdit_patches(own, picture_size(*step.batch)).count();
                  return {step.batch->rows(), step.batch->at("noised").size(2), places, hidden};
                }),
          state("modulation", {Dim::Row, Dim::Other, Dim::Other, Dim::Feature},
                [hidden](const nn::ForwardContext& step) -> Sizes {
                  return {step.batch->rows(), stdit_times(step), kStditVectors, hidden};
                }),
          state("condition", {Dim::Row, Dim::Other, Dim::Feature},
                [hidden](const nn::ForwardContext& step) -> Sizes {
                  return {step.batch->rows(), stdit_times(step), hidden};
                }),
          state("text", {Dim::Row, Dim::Other, Dim::Feature}, [hidden](const nn::ForwardContext& step) -> Sizes {
            return {step.batch->rows(), step.batch->at("text").size(1), hidden};
          })};
}

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"noised", "times", kFps, "text"};
  model.states = states_of(s);
  const auto patches = std::make_shared<const Patches>(s, layers);
  const auto conditioning = std::make_shared<const Conditioning>(s, layers);
  const auto caption = std::make_shared<const Caption>(s, layers);
  const auto embed = [=](States& states, const tensor::Batch& batch, const nn::ForwardContext& step) {
    states[kStditHidden] = patches->forward(batch, step);
    conditioning->forward(states, step);
    states[kStditText] = caption->forward(step);
  };
  model.embed = Embed({kStditHidden, kStditModulation, kStditCondition, kStditText}, embed);
  const auto turns = std::make_shared<const ops::RotaryTable>(s.head_dim, kFrequencies);
  for (int64_t i = 0; i < s.layers; ++i) model.blocks.push_back(make_stdit_block(s, i, turns, layers));
  const auto end = std::make_shared<const End>(s, layers);
  model.norm = Block(
      {kStditHidden, kStditCondition}, {kStditHidden},
      [end](States& states, const nn::ForwardContext& step) { states[kStditHidden] = end->forward(states, step); });
  return model;
}

ModelShape sized(const StditSizes& own, int64_t hidden, int64_t pairs, int64_t heads) {
  return {.hidden = hidden,
          .layers = 2 * pairs,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = 4 * hidden,
          .norm_epsilon = 1e-6,
          .tied = false,
          .own = own};
}

/// Returns a toy for small clips of pixels, and the published model.
std::vector<Preset> presets() {
  StditSizes toy{.frames = 8, .height = 16, .width = 16, .channels = 3, .patch = 4, .spare_outputs = false};
  toy.text = 64, toy.tokens = 77;
  toy.cell = 1, toy.base_side = 16;
  return {{"stdit3-tiny", sized(toy, 96, 2, 4)}, {"stdit3-xl-2", sized({}, 1152, 28, 16)}};
}

}  // namespace stdit

Architecture stdit_architecture() {
  return {.name = "stdit",
          .own = StditSizes{},
          .presets = stdit::presets(),
          .make = stdit::make,
          .task = stdit::task,
          .settle = stdit::settle,
          .hugging_face = stdit_folder()};
}

}  // namespace colossal::models
