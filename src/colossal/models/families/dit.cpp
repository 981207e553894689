#include "colossal/models/families/dit.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/class_names.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/models/modulated_end.h"
#include "colossal/models/number_embedder.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/features.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/sinusoids.h"
#include "colossal/nn/tokens.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

/// Largest number of cells in a row or column.
constexpr int64_t kMaxCells = 1 << 16;

void DitSizes::fields(Fields& f) {
  f.integer("height", height, "cells", "height of the pictures or latents", 1, kMaxCells);
  f.integer("width", width, "cells", "width of the pictures or latents", 1, kMaxCells);
  f.integer("channels", channels, "channels", "number of channels that are read", 1, kMaxSize);
  f.integer("patch", patch, "cells", "side of a patch", 1, kMaxCells);
  f.integer("classes", classes, "classes", "number of classes; one more is the null class", 1, kMaxClasses);
  f.texts("class_names", class_names, "names of the classes, in order; empty = numbers only");
  f.flag("learned_sigma", learned_sigma, "the model predicts the variance too, in as many channels again");
  f.integer("freq_shift", freq_shift, "",
            "shift of the frequencies of times: 1 as in diffusers, 0 as in the paper's code", 0, 1);
  f.number("mlp_epsilon", mlp_epsilon, "", "epsilon of the norm before the feed-forward layer", 0);
}

namespace dit {  // a namespace of its own, because every family has functions of these names

constexpr int kHidden = 0, kCondition = 1;  // indices of the two states

Task task(const ModelShape& s) {
  return {.reads = Reads::Fields,
          .writes = Writes::Nothing,
          .objective = "diffusion",
          .class_names = s.own.as<DitSizes>().class_names};
}

/// Sets the positions to the number of patches.
void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  refuse_free_heads(s, "a DiT");
  const auto own = s.own.as<DitSizes>();
  const std::pair<const char*, int64_t> sizes[] = {{"height", own.height},
                                                   {"width", own.width},
                                                   {"channels", own.channels},
                                                   {"patch", own.patch},
                                                   {"classes", own.classes}};
  for (const auto& [name, size] : sizes) require(size > 0, "model", name, " must be positive: got ", size);
  for (const auto& [name, side] : {sizes[0], sizes[1]})
    require(side % own.patch == 0, "model", name, " must be divisible by patch: got ", side, ", patch ", own.patch,
            "; nearest: ", std::max<int64_t>(1, (side + own.patch / 2) / own.patch) * own.patch);
  require(s.hidden % 4 == 0, "model", "the hidden size of a DiT must be divisible by 4, for its positions: got ",
          s.hidden, "; set model.hidden");
  require(s.dropout == 0, "model", "a DiT has no dropout: got ", s.dropout, "; set model.dropout = 0");
  check_class_names({own.classes, own.class_names});
  s.positions = own.patches(own.channels).count();
  s.set(DenoiserSizes{.channels = own.channels,
                      .height = own.height,
                      .width = own.width,
                      .patch = own.patch,
                      .outputs = own.outputs(),
                      .classes = own.classes,
                      .schedule = "linear",
                      .guidance = 4,
                      .vae = own.channels == 3 ? "" : "autoencoder-kl"});
}

/// The vector of a time and a class: that of the time, and a row of a table of classes.
class Conditioning {
 public:
  Conditioning(const ModelShape& s, nn::Layers& make)
      : part_(make.field_part()),
        of_time_("time", s.hidden,
                 {.shift = static_cast<double>(s.own.as<DitSizes>().freq_shift),
                  .first_deviation = kDeviation,
                  .second_deviation = kDeviation},
                 make),
        classes_(make.vector("classes.weight", {s.own.as<DitSizes>().classes + 1, s.hidden},
                             {.features = 1, .init = nn::Init::normal(kDeviation), .decay = true})) {}

  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    return of_time_.forward(part_(batch.field("times"), step)) +
           nn::lookup(classes_->value(), part_(batch.field("classes"), step));
  }

 private:
  nn::FieldPart part_;
  NumberEmbedder of_time_;
  std::unique_ptr<nn::Vector> classes_;
};

/// The patches of the noised picture with their fixed positions.
class Patches {
 public:
  Patches(const ModelShape& s, nn::Layers& make)
      : tokens_(make.own_tokens()),
        features_(make.features(s.hidden, nn::Place::Outside)),
        options_(at::TensorOptions(make.parameters().options().device).dtype(make.parameters().options().dtype)) {
    const nn::PatchShape shape = s.own.as<DitSizes>().patches(s.own.as<DitSizes>().channels);
    embedding_ = make.patch_embedding("patches", shape, s.hidden,
                                      glorot(shape.channels * shape.patch * shape.patch, s.hidden), "", 0);
    positions_ = nn::picture_positions(shape.rows(), shape.columns(), s.hidden).to(options_);
  }

  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const at::Tensor own = tokens_(step).sequence.of(positions_, 0, "sequence");
    const nn::Range here = features_->here();
    return embedding_->forward(batch.at("noised").to(options_.dtype().toScalarType()), step) +
           own.narrow(1, here.first, here.size);
  }

 private:
  nn::OwnTokens tokens_;
  std::shared_ptr<const nn::Features> features_;
  at::TensorOptions options_;
  std::unique_ptr<nn::PatchEmbedding> embedding_;
  at::Tensor positions_;  // [patches, H], of all ranks
};

/// A transformer block whose norms and branches the condition modulates (adaLN-Zero).
class Block {
 public:
  Block(const ModelShape& s, const std::string& name, nn::Layers& make)
      : modulation_(make.modulation(name + ".modulation", s.hidden, 6)),
        norm_1_(make.layer_norm(name + ".norm_1", s.hidden, {.epsilon = s.norm_epsilon, .affine = false})),
        qkv_(make.heads(name + ".attention.qkv", s.attention(), {.deviation = glorot(s.hidden, 3 * s.hidden)})),
        attention_(make.attention(name + ".attention", s.attention(), {.causal = false})),
        out_(make.from_heads(name + ".attention.out", s.attention(), {.deviation = glorot(s.hidden, s.hidden)})),
        norm_2_(make.layer_norm(name + ".norm_2", s.hidden,
                                {.epsilon = s.own.as<DitSizes>().mlp_epsilon, .affine = false})),
        up_(make.expand(name + ".mlp.up", s.hidden, s.ffn, {.deviation = glorot(s.hidden, s.ffn)})),
        down_(make.contract(name + ".mlp.down", s.ffn, s.hidden, {.deviation = glorot(s.hidden, s.ffn)})) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& condition, const nn::ForwardContext& step) const {
    const std::vector<at::Tensor> m = modulation_->forward(condition);  // shift, scale and gate of both branches
    const nn::Heads heads = qkv_->forward(nn::modulated(norm_1_->forward(x), m[0], m[1]), step);
    const at::Tensor h = x + m[2] * out_->forward(attention_->forward(heads, step), step);
    const nn::Inside inside = up_->forward(nn::modulated(norm_2_->forward(h), m[3], m[4]));
    return h + m[5] * down_->forward(inside.map(ops::gelu, step));
  }

 private:
  std::unique_ptr<nn::Modulation> modulation_;
  std::unique_ptr<nn::Norm> norm_1_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::OutputProjection> out_;
  std::unique_ptr<nn::Norm> norm_2_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
};

State condition_state(int64_t hidden) {
  using tensor::Dim;
  return {.name = "condition",
          .dims = {Dim::Row, Dim::Feature},
          .sizes = [hidden](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
            return {step.batch->rows(), hidden};
          }};
}

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"noised", "times", "classes"};
  model.states = {hidden_state(s.hidden, s.positions), condition_state(s.hidden)};
  const auto patches = std::make_shared<const Patches>(s, layers);
  const auto conditioning = std::make_shared<const Conditioning>(s, layers);
  const auto embed = [patches, conditioning](States& states, const tensor::Batch& batch,
                                             const nn::ForwardContext& step) {
    states[kHidden] = patches->forward(batch, step);
    states[kCondition] = conditioning->forward(batch, step);
  };
  model.embed = Embed({kHidden, kCondition}, embed);
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const Block>(s, concat("blocks.", i), layers);
    const auto run = [block](States& states, const nn::ForwardContext& step) {
      states[kHidden] = block->forward(states[kHidden], states[kCondition], step);
    };
    model.blocks.push_back({{kHidden, kCondition}, {kHidden}, run});
  }
  const auto own = s.own.as<DitSizes>();
  const auto end = std::make_shared<const ModulatedEnd>(layers, s.hidden, own.patch * own.patch * own.outputs());
  const auto norm = [end](States& states, const nn::ForwardContext& step) {
    states[kHidden] = end->forward(states[kHidden], states[kCondition], step);
  };
  model.norm = models::Block({kHidden, kCondition}, {kHidden}, norm);
  return model;
}

ModelShape sized(const DitSizes& own, int64_t hidden, int64_t layers, int64_t heads) {
  return {.hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = 4 * hidden,
          .norm_epsilon = 1e-6,
          .tied = false,
          .own = own};
}

/// Returns a toy for small pictures, and table 1 of the paper with each of its patches, for latents of 256 pixels and
/// the 1000 classes of ImageNet.
std::vector<Preset> presets() {
  struct Size {
    const char* name;
    int64_t hidden, layers, heads;
  };
  const DitSizes toy{.height = 16, .width = 16, .channels = 3, .patch = 4, .classes = 10};
  std::vector<Preset> list{{"dit-tiny", sized(toy, 128, 4, 4)}};
  for (const auto& [name, hidden, layers, heads] :
       {Size{"s", 384, 12, 6}, Size{"b", 768, 12, 12}, Size{"l", 1024, 24, 16}, Size{"xl", 1152, 28, 16}})
    for (const int64_t patch : {2, 4, 8}) {
      const DitSizes latents{
          .height = 32, .width = 32, .channels = 4, .patch = patch, .classes = 1000, .learned_sigma = true};
      list.push_back({concat("dit-", name, "-", patch), sized(latents, hidden, layers, heads)});
    }
  return list;
}

}  // namespace dit

Architecture dit_architecture() {
  return {.name = "dit",
          .own = DitSizes{},
          .presets = dit::presets(),
          .make = dit::make,
          .task = dit::task,
          .settle = dit::settle,
          .hugging_face = {.own_training = {"class_names"}},
          .diffusers = {.class_name = "DiTTransformer2DModel",
                        .part = "transformer",
                        .pipeline = "DiTPipeline",
                        .names = dit_diffusers_names,
                        .from_json = dit_from_diffusers,
                        .to_json = dit_to_diffusers,
                        .copies = dit_diffusers_copies}};
}

}  // namespace colossal::models
