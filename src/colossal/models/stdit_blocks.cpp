#include "colossal/models/stdit_blocks.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_reuse.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/axis_switch.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/norm.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

namespace stdit {

constexpr double kHeadNorm = 1e-6;                             // epsilon
constexpr const char *kGiven = "given", *kMask = "text_mask";  // fields

}  // namespace stdit

nn::PatchShape stdit_patches(const StditSizes& own, const ops::PictureSize& size) {
  return nn::patches_over({own.channels, size.height, size.width, own.patch, /*class_tokens=*/0});
}

int64_t stdit_times(const nn::ForwardContext& step) { return step.batch->find(stdit::kGiven).defined() ? 2 : 1; }

/// Products, because LibTorch has no C++ version of where() for tensors on meta.
at::Tensor stdit_choose(const at::Tensor& mask, const at::Tensor& chosen, const at::Tensor& other) {
  return chosen * mask.ne(0).to(chosen.scalar_type()) + other * mask.eq(0).to(other.scalar_type());
}

StditFrameModulation::StditFrameModulation(const std::string& name, int64_t hidden, int64_t count, nn::Layers& make)
    : part_(make.field_part()),
      table_(make.vector(name, {count, hidden},
                         {.features = 1, .init = nn::Init::normal(1 / std::sqrt(static_cast<double>(hidden)))})) {}

std::vector<at::Tensor> StditFrameModulation::forward(const at::Tensor& of_times,
                                                      const nn::ForwardContext& step) const {
  at::Tensor vectors = of_times + table_->value();
  if (stdit_times(step) > 1) {
    const at::Tensor given = part_(step.batch->field(stdit::kGiven), step).unsqueeze(-1).unsqueeze(-1);
    vectors = stdit_choose(given, vectors.narrow(1, 1, 1), vectors.narrow(1, 0, 1));
  }
  return vectors.unsqueeze(2).unbind(3);
}

namespace stdit {

/// Attention within each of some sequences, x [sequences, tokens, h].
class SequencesAttention {
 public:
  /// `turns`: rotates q and k by the index of their token; null = not.
  SequencesAttention(const ModelShape& s, const std::string& name, std::unique_ptr<nn::Attention> attention,
                     std::shared_ptr<const ops::RotaryTable> turns, double out_deviation, nn::Layers& make)
      : turns_(std::move(turns)),
        qkv_(make.heads(name + ".qkv", s.attention(), {.deviation = glorot(s.hidden, 3 * s.hidden)})),
        q_norm_(make.head_norm(name + ".q_norm", s.head_dim, {.epsilon = kHeadNorm})),
        k_norm_(make.head_norm(name + ".k_norm", s.head_dim, {.epsilon = kHeadNorm})),
        attention_(std::move(attention)),
        out_(make.from_heads(name + ".out", s.attention(), {.deviation = out_deviation})) {}

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    nn::Heads heads = qkv_->forward(x, step);
    heads.q = q_norm_->forward(heads.q);
    heads.k = k_norm_->forward(heads.k);
    if (turns_) {
      const int64_t tokens = x.size(1);
      const at::Tensor indices = at::arange(tokens, heads.q.options().dtype(at::kLong)).expand({heads.q.size(0), -1});
      std::tie(heads.q, heads.k) = ops::rotary(heads.q, heads.k, indices, *turns_, tokens);
    }
    return out_->forward(attention_->forward(heads, step), step);
  }

 private:
  std::shared_ptr<const ops::RotaryTable> turns_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Norm> q_norm_, k_norm_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::OutputProjection> out_;
};

/// Attention of every place of every frame to the caption of its row.
class CrossAttention {
 public:
  CrossAttention(const ModelShape& s, const std::string& name, double out_deviation, nn::Layers& make)
      : heads_(make.cross_heads(name, s.attention(), {.deviation = glorot(s.hidden, s.hidden)},
                                {.deviation = glorot(s.hidden, 2 * s.hidden)})),
        out_(make.from_heads(name + ".out", s.attention(), {.deviation = out_deviation})) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& text, const nn::ForwardContext& step) const {
    nn::Heads heads = heads_->forward(x, text, step);
    heads.q = heads.q.flatten(1, 2);
    nn::Inside y = nn::attention_to_source(heads, step.batch->find(kMask));
    y.tensor = y.tensor.unflatten(1, {x.size(1), x.size(2)});
    return out_->forward(y, step);
  }

 private:
  std::unique_ptr<nn::CrossProjection> heads_;
  std::unique_ptr<nn::OutputProjection> out_;
};

using Axis = nn::AttentionKind;  // where a block attends: Space or Time

/// A transformer block that attends in space or in time, and to the caption.
class TwoAxesBlock {
 public:
  TwoAxesBlock(const ModelShape& s, int64_t index, const std::shared_ptr<const ops::RotaryTable>& turns,
               nn::Layers& make)
      : TwoAxesBlock(s, index % 2 == 0 ? Axis::Space : Axis::Time, concat("blocks.", index), turns, make) {}

  at::Tensor forward(const States& states, const nn::ForwardContext& step) const {
    const at::Tensor& x = states[kStditHidden];
    const std::vector<at::Tensor> m = modulation_.forward(states[kStditModulation], step);
    const auto over_axis = [&] { return attended(nn::modulated(norm_1_->forward(x), m[0], m[1]), step); };
    at::Tensor h = x + m[2] * nn::reusable(step, axis_, this, over_axis);
    h = h + nn::reusable(step, Axis::Caption, this, [&] { return cross_.forward(h, states[kStditText], step); });
    const nn::Inside inside = up_->forward(nn::modulated(norm_2_->forward(h), m[3], m[4]));
    return h + m[5] * down_->forward(inside.map(ops::gelu, step));
  }

 private:
  TwoAxesBlock(const ModelShape& s, Axis axis, const std::string& name,
               const std::shared_ptr<const ops::RotaryTable>& turns, nn::Layers& make)
      : axis_(axis),
        own_(s.own.as<StditSizes>()),
        modulation_(name + ".modulation", s.hidden, kStditVectors, make),
        norm_1_(make.layer_norm(name + ".norm_1", s.hidden, {.epsilon = s.norm_epsilon, .affine = false})),
        axes_(make.axis_switch()),
        attention_(s, name + ".attention", attention(s, axis, name + ".attention", make),
                   axis == Axis::Time ? turns : nullptr, last(s.hidden, s.hidden), make),
        cross_(s, name + ".cross", last(s.hidden, s.hidden), make),
        norm_2_(make.layer_norm(name + ".norm_2", s.hidden, {.epsilon = s.norm_epsilon, .affine = false})),
        up_(make.expand(name + ".mlp.up", s.hidden, s.ffn, {.deviation = glorot(s.hidden, s.ffn)})),
        down_(make.contract(name + ".mlp.down", s.ffn, s.hidden, {.deviation = last(s.ffn, s.hidden)})) {}

  /// Returns the deviation of the last layer of a branch: temporal blocks begin as the identity.
  double last(int64_t in, int64_t out) const { return axis_ == Axis::Time ? 0 : glorot(in, out); }

  /// A rank has all frames of its places, so attention in time needs nothing of other ranks.
  static std::unique_ptr<nn::Attention> attention(const ModelShape& s, Axis axis, const std::string& name,
                                                  nn::Layers& make) {
    const nn::AttentionOptions options{.causal = false};
    return axis == Axis::Time ? nn::axis_attention(s.attention(), options)
                              : make.attention(name, s.attention(), options);
  }

  /// Takes x [b, frames, own places, h]. In space a rank attends to whole frames, some of those of all rows, or with
  /// the other ranks (nn/axis_switch.h).
  at::Tensor attended(const at::Tensor& x, const nn::ForwardContext& step) const {
    const int64_t rows = x.size(0);
    if (axis_ == Axis::Time) {
      const at::Tensor y = attention_.forward(x.transpose(1, 2).flatten(0, 1), step);
      return y.unflatten(0, {rows, -1}).transpose(1, 2);
    }
    const nn::Axis frames{.dim = 0, .size = rows * x.size(1), .name = "frames"},
        places{.dim = 1, .size = stdit_patches(own_, picture_size(*step.batch)).count(), .name = "places"};
    const at::Tensor y = attention_.forward(axes_->forward(x.flatten(0, 1), places, frames), step);
    return axes_->forward(y, frames, places).unflatten(0, {rows, -1});
  }

  Axis axis_;
  StditSizes own_;
  StditFrameModulation modulation_;
  std::unique_ptr<nn::Norm> norm_1_;
  std::shared_ptr<const nn::AxisSwitch> axes_;
  SequencesAttention attention_;
  CrossAttention cross_;
  std::unique_ptr<nn::Norm> norm_2_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
};

}  // namespace stdit

Block make_stdit_block(const ModelShape& s, int64_t index, const std::shared_ptr<const ops::RotaryTable>& turns,
                       nn::Layers& layers) {
  const auto block = std::make_shared<const stdit::TwoAxesBlock>(s, index, turns, layers);
  return {
      {kStditHidden, kStditModulation, kStditText},
      {kStditHidden},
      [block](States& states, const nn::ForwardContext& step) { states[kStditHidden] = block->forward(states, step); }};
}

}  // namespace colossal::models
