#include "colossal/models/families/mmdit.h"

#include <ATen/ATen.h>

#include <memory>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/mmdit_blocks.h"
#include "colossal/models/mmdit_patches.h"
#include "colossal/models/modulated_end.h"
#include "colossal/models/number_embedder.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/transformer_block.h"
#include "colossal/models/vector_embedder.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/joint_sequence.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/tokens.h"

namespace colossal::models {

void MmditSizes::fields(Fields& f) {
  constexpr int64_t kMaxCells = 1 << 16, kMaxBlocks = 1 << 16;
  f.integer("height", height, "cells", "height of the latents", 1, kMaxCells);
  f.integer("width", width, "cells", "width of the latents", 1, kMaxCells);
  f.integer("channels", channels, "channels", "number of channels that are read and predicted", 1, kMaxSize);
  f.integer("patch", patch, "cells", "side of a patch", 1, kMaxCells);
  f.integer("text", text, "features", "width of the text states", 1, kMaxSize);
  f.integer("text_tokens", text_tokens, "tokens", "usual number of text states, for plans", 1, kMaxSize);
  f.integer("pooled", pooled, "features", "width of the one state of a whole text", 1, kMaxSize);
  f.integer("single", single, "blocks", "how many of the last layers are blocks that words and patches share", 0,
            kMaxBlocks);
  f.integer("table", table, "patches", "side of the table of fixed positions; 0 = none", 0, kMaxCells);
  f.integers("axes", axes, "features", "features of a head that turn by frame, row and column; empty = none turn", 2,
             kMaxSize);
  f.flag("head_norms", head_norms, "norms of queries and keys");
  f.flag("told_guidance", told_guidance, "the model is told the strength of guidance");
  f.integer("frames", frames, "frames",
            "frames of the clips or their latents; other batches may have others; 0 = "
            "pictures",
            0, kMaxCells);
}

MmditSizes flux_sizes() {
  return {.text_tokens = 256, .pooled = 768, .single = 38, .table = 0, .axes = {16, 56, 56}, .head_norms = true};
}

MmditSizes open_sora_sizes() {
  MmditSizes own = flux_sizes();
  own.frames = 33, own.height = 72, own.width = 128;
  own.text_tokens = 512;
  return own;
}

namespace mmdit {  // a namespace of its own, because every family has functions of these names

constexpr double kGuidanceLevels = 1000;  // a strength of 1 is embedded like the last of 1,000 levels

Task task(const ModelShape&) { return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = "diffusion"}; }

void check(const ModelShape& s, const MmditSizes& own) {
  for (const auto& [name, side] : {std::pair{"height", own.height}, {"width", own.width}}) {
    require(own.frames > 0 || side % own.patch == 0, "model", name, " must be divisible by patch: got ", side,
            ", patch ", own.patch, "; nearest: ", std::max<int64_t>(1, (side + own.patch / 2) / own.patch) * own.patch);
    require(own.table == 0 || side / own.patch <= own.table, "model", name, " must have at most the ", own.table,
            " patches of the table of positions: got ", side / own.patch, "; set model.table");
  }
  require(own.table == 0 || s.hidden % 4 == 0, "model",
          "the hidden size must be divisible by 4, for positions of a table: got ", s.hidden, "; set model.hidden");
  const int64_t turned = std::accumulate(own.axes.begin(), own.axes.end(), int64_t{0});
  require(own.axes.empty() || (own.axes.size() >= 2 && turned == s.head_dim), "model",
          "axes must have the features of a head, ", s.head_dim,
          ", in at least two parts, the last of row and column: got ", at::IntArrayRef(own.axes), "; set model.axes");
  require(own.frames == 0 || own.axes.size() == 3, "model",
          "axes of a model of clips must be those of frame, row and column: got ", at::IntArrayRef(own.axes),
          "; set model.axes");
  require(own.frames == 0 || own.table == 0, "model", "a model of clips must have no table of positions: got ",
          own.table, " patches; set model.table = 0");
  require(own.single < s.layers, "model", "single must leave a double block: got ", own.single, " of ", s.layers,
          " layers; set model.single");
  require(s.dropout == 0, "model", "an MMDiT has no dropout: got ", s.dropout, "; set model.dropout = 0");
}

/// Returns the preset of the autoencoder whose latents have that many channels.
const char* vae_of(const MmditSizes& own) {
  if (own.channels == 3) return "";
  if (own.frames > 0) return own.channels == 16 ? "hunyuan-video-vae" : "";
  if (own.channels < 16) return "autoencoder-kl-tiny";
  return own.table > 0 ? "autoencoder-kl-sd3" : "autoencoder-kl-flux";
}

/// Returns the text encoders of FLUX, which turns heads by place: CLIP's pooled state, and the states of T5.
std::vector<CaptionPart> flux_captions(const MmditSizes& own) {
  const bool is_tiny = own.text == 64 && own.pooled == 64, is_known = own.text == 4096 && own.pooled == 768;
  return {{.preset = is_known  ? "clip-l"
                     : is_tiny ? "clip-text-tiny"
                               : "",
           .states = CaptionStates::None,
           .pooled = true},
          {.preset = is_known  ? "t5-v1.1-xxl-encoder"
                     : is_tiny ? "t5-encoder-tiny"
                               : "",
           .tokens = own.text_tokens}};
}

/// Returns the text encoders of Stable Diffusion 3: two of CLIP, whose features follow each other, and T5, whose tokens
/// follow theirs.
std::vector<CaptionPart> sd3_captions(const MmditSizes& own) {
  const bool is_tiny = own.text == 64 && own.pooled == 48, is_known = own.text == 4096 && own.pooled == 2048;
  const char* tiny = is_tiny ? "clip-text-tiny-projected" : "";
  const CaptionPart clip{
      .preset = is_known ? "clip-l-projected" : tiny, .states = CaptionStates::Hidden, .pooled = true};
  CaptionPart second = clip;
  if (is_known) second.preset = "open-clip-bigg";
  const int64_t tokens = std::max<int64_t>(2, own.text_tokens - clip.tokens);
  return {clip,
          second,
          {.preset = is_known  ? "t5-v1.1-xxl-encoder"
                     : is_tiny ? "t5-encoder-tiny"
                               : "",
           .tokens = tokens,
           .is_after = true}};
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  refuse_free_heads(s, "an MMDiT");
  const auto own = s.own.as<MmditSizes>();
  check(s, own);
  const nn::PatchShape patches = nn::patches_over({own.channels, own.height, own.width, own.patch, 0});
  const bool is_clip = own.frames > 0;
  s.positions = std::max<int64_t>(own.frames, 1) * patches.count();
  s.set(AttentionAxes{.sequence = is_clip ? "text and video" : "text and picture"});
  s.set(PositionTable{own.table * own.patch});
  s.set(DenoiserSizes{.channels = own.channels,
                      .height = own.height,
                      .width = own.width,
                      .patch = own.patch,
                      .outputs = own.channels,
                      .text = own.text,
                      .side = is_clip ? 1 : own.patch,
                      .target = "flow",
                      .guidance = own.told_guidance ? 3.5
                                  : is_clip         ? 7.5
                                  : own.single > 0  ? 1.0
                                                    : 7.0,
                      .captions = own.axes.empty() ? sd3_captions(own) : flux_captions(own),
                      .vae = vae_of(own),
                      .text_tokens = own.text_tokens,
                      .pooled = own.pooled,
                      .told_guidance = own.told_guidance,
                      .frames = own.frames,
                      .shift = is_clip             ? "open-sora-2"
                               : own.axes.empty()  ? "sd3"
                               : own.told_guidance ? "flux"
                                                   : "flux-schnell",
                      .noises_given = is_clip});
}

/// The sum of the vectors of the time, of the strength of guidance and of the whole caption.
class Conditioning {
 public:
  Conditioning(const ModelShape& s, nn::Layers& make)
      : part_(make.field_part()),
        of_time_("time", s.hidden, kNumber, make),
        of_text_("pooled", {s.own.as<MmditSizes>().pooled, s.hidden, kDeviation, kDeviation}, make) {
    if (s.own.as<MmditSizes>().told_guidance)
      of_guidance_ = std::make_unique<NumberEmbedder>("guidance", s.hidden, kNumber, make);
  }

  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const auto field = [&](const char* name) { return part_(batch.field(name), step); };
    const at::Tensor y = of_time_.forward(field("times")) + of_text_.forward(field("pooled"));
    return of_guidance_ ? y + of_guidance_->forward(field("guidance") * kGuidanceLevels) : y;
  }

 private:
  static constexpr NumberEmbedding kNumber{.first_deviation = kDeviation, .second_deviation = kDeviation};
  nn::FieldPart part_;
  NumberEmbedder of_time_;
  VectorEmbedder of_text_;
  std::unique_ptr<NumberEmbedder> of_guidance_;  // null = the model is not told
};

/// The words of the caption, as tokens of the model.
class Words {
 public:
  Words(const ModelShape& s, nn::Layers& make)
      : part_(make.field_part()),
        tokens_(make.own_tokens()),
        joint_(make),
        dtype_(make.parameters().options().dtype),
        linear_(make.dense("text", s.own.as<MmditSizes>().text, s.hidden, {.deviation = kDeviation})) {}

  at::Tensor forward(const tensor::Batch& batch, int64_t patches, const nn::ForwardContext& step) const {
    const nn::JointSteps steps = joint_.steps(step, mmdit_words(batch), patches);
    const at::Tensor text = part_(batch.field("text"), step).to(dtype_);
    return linear_->forward(tokens_(steps.first).sequence.of(text, 1, "text"));
  }

 private:
  nn::FieldPart part_;
  nn::OwnTokens tokens_;
  nn::JointSequence joint_;
  at::ScalarType dtype_;
  std::unique_ptr<nn::Dense> linear_;
};

/// Returns the states of the patches and of the words, and the condition.
std::vector<State> states_of(const MmditSizes& own, int64_t hidden) {
  using tensor::Dim;
  const auto tokens = [hidden](const char* name, std::function<int64_t(const tensor::Batch&)> count) {
    return State{.name = name,
                 .dims = {Dim::Row, Dim::Token, Dim::Feature},
                 .sizes = [=](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
                   return {step.batch->rows(), count(*step.batch), hidden};
                 }};
  };
  return {tokens("hidden", [own](const tensor::Batch& batch) { return mmdit_grid(own, batch).count(); }),
          tokens("text", mmdit_words),
          {.name = "condition",
           .dims = {Dim::Row, Dim::Feature},
           .sizes = [hidden](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
             return {step.batch->rows(), hidden};
           }}};
}

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<MmditSizes>();
  Model model;
  model.fields = {"noised", "times", "text", "pooled"};
  if (own.told_guidance) model.fields.emplace_back("guidance");
  model.states = states_of(own, s.hidden);
  const auto patches = std::make_shared<const MmditPatches>(s, layers);
  const auto words = std::make_shared<const Words>(s, layers);
  const auto conditioning = std::make_shared<const Conditioning>(s, layers);
  const auto embed = [=](States& states, const tensor::Batch& batch, const nn::ForwardContext& step) {
    states[kMmditHidden] = patches->forward(batch, step);
    states[kMmditText] = words->forward(batch, mmdit_grid(own, batch).count(), step);
    states[kMmditCondition] = conditioning->forward(batch, step);
  };
  model.embed = Embed({kMmditHidden, kMmditText, kMmditCondition}, embed);
  const auto places = own.axes.empty() ? nullptr : std::make_shared<const MmditPlaces>(own, layers);
  for (int64_t i = 0; i < s.layers; ++i) model.blocks.push_back(make_mmdit_block(s, i, places, layers));
  const auto end = std::make_shared<const ModulatedEnd>(layers, s.hidden, own.patch * own.patch * own.channels);
  const auto norm = [=](States& states, const nn::ForwardContext& step) {
    const at::Tensor y = end->forward(states[kMmditHidden], states[kMmditCondition], step);
    const int64_t frames = mmdit_grid(own, *step.batch).frames;
    states[kMmditHidden] = own.frames > 0 ? y.unflatten(1, {frames, -1}).transpose(1, 2) : y;
  };
  model.norm = models::Block({kMmditHidden, kMmditCondition}, {kMmditHidden}, norm);
  return model;
}

ModelShape sized(const MmditSizes& own, int64_t layers, int64_t heads, int64_t head_dim) {
  return {.hidden = heads * head_dim,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .ffn = 4 * heads * head_dim,
          .norm_epsilon = 1e-6,
          .tied = false,
          .own = own};
}

/// Returns Stable Diffusion 3 medium, and a toy of its form.
std::vector<Preset> sd3_presets() {
  const MmditSizes toy{
      .height = 8, .width = 8, .channels = 4, .text = 64, .text_tokens = 128, .pooled = 48, .table = 16};
  return {{"sd3-tiny", sized(toy, 2, 4, 32)}, {"sd3-medium", sized({}, 24, 24, 64)}};
}

/// Returns FLUX.1 dev and schnell, and a toy of dev's form.
std::vector<Preset> flux_presets() {
  MmditSizes dev = flux_sizes(), toy = flux_sizes();
  toy.height = toy.width = 8;
  toy.channels = 4;
  toy.text = toy.pooled = 64;
  toy.text_tokens = 77;
  toy.single = 2;
  toy.axes = {8, 12, 12};
  dev.told_guidance = toy.told_guidance = true;
  dev.text_tokens = 512;
  return {{"flux-tiny", sized(toy, 3, 4, 32)},
          {"flux-dev", sized(dev, 57, 24, 128)},
          {"flux-schnell", sized(flux_sizes(), 57, 24, 128)}};
}

/// Returns Open-Sora 2, and a toy of its form for small clips of pixels.
std::vector<Preset> open_sora_presets() {
  MmditSizes toy = open_sora_sizes();
  toy.frames = 8, toy.height = toy.width = 16;
  toy.channels = 3, toy.patch = 4;
  toy.text = toy.pooled = 64;
  toy.text_tokens = 77;
  toy.single = 2;
  toy.axes = {8, 12, 12};
  return {{"open-sora-2-tiny", sized(toy, 3, 4, 32)}, {"open-sora-2", sized(open_sora_sizes(), 57, 24, 128)}};
}

}  // namespace mmdit

Architecture sd3_architecture() {
  return {.name = "sd3",
          .own = MmditSizes{},
          .presets = mmdit::sd3_presets(),
          .make = mmdit::make,
          .task = mmdit::task,
          .settle = mmdit::settle,
          .diffusers = {.class_name = "SD3Transformer2DModel",
                        .part = "transformer",
                        .pipeline = "StableDiffusion3Pipeline",
                        .names = sd3_diffusers_names,
                        .from_json = sd3_from_diffusers,
                        .to_json = sd3_to_diffusers}};
}

Architecture flux_architecture() {
  return {.name = "flux",
          .own = flux_sizes(),
          .presets = mmdit::flux_presets(),
          .make = mmdit::make,
          .task = mmdit::task,
          .settle = mmdit::settle,
          .diffusers = {.class_name = "FluxTransformer2DModel",
                        .part = "transformer",
                        .pipeline = "FluxPipeline",
                        .names = flux_diffusers_names,
                        .from_json = flux_from_diffusers,
                        .to_json = flux_to_diffusers}};
}

Architecture open_sora_architecture() {
  return {.name = "open-sora",
          .own = open_sora_sizes(),
          .presets = mmdit::open_sora_presets(),
          .make = mmdit::make,
          .task = mmdit::task,
          .settle = mmdit::settle,
          .hugging_face = open_sora_folder()};
}

}  // namespace colossal::models
