#include "colossal/models/mmdit_blocks.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/initial_deviations.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/joint_sequence.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/modulation.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/patches.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {

MmditGrid mmdit_grid(const MmditSizes& own, const tensor::Batch& batch) {
  const ops::PictureSize size = picture_size(batch);
  const nn::PatchShape patches = nn::patches_over({own.channels, size.height, size.width, own.patch, 0});
  return {own.frames > 0 ? batch.at("noised").size(2) : 1, patches.rows(), patches.columns()};
}

int64_t mmdit_words(const tensor::Batch& batch) { return batch.at("text").size(1); }

MmditPlaces::MmditPlaces(const MmditSizes& own, nn::Layers& make)
    : own_(own), integers_(at::TensorOptions(make.parameters().options().device).dtype(at::kLong)) {}

at::Tensor MmditPlaces::of(const tensor::Batch& batch) const {
  const MmditGrid grid = mmdit_grid(own_, batch);
  const int64_t words = mmdit_words(batch), axes = static_cast<int64_t>(own_.axes.size());
  const std::scoped_lock lock(mutex_);
  if (known_.defined() && known_words_ == words && known_grid_ == grid) return known_;
  known_ = at::zeros({words + grid.count(), axes}, integers_);
  const at::Tensor of_patches =
      known_.narrow(0, words, grid.count()).view({grid.frames, grid.rows, grid.columns, axes});
  of_patches.select(3, axes - 2).copy_(at::arange(grid.rows, integers_).unsqueeze(1));
  of_patches.select(3, axes - 1).copy_(at::arange(grid.columns, integers_));
  if (grid.frames > 1) of_patches.select(3, 0).copy_(at::arange(grid.frames, integers_).view({-1, 1, 1}));
  known_words_ = words;
  known_grid_ = grid;
  return known_;
}

namespace mmdit {

constexpr double kHeadNorm = 1e-6, kTheta = 10000;

std::unique_ptr<nn::Norm> plain_norm(const ModelShape& s, const std::string& name, nn::Layers& make) {
  return make.layer_norm(name, s.hidden, {.epsilon = s.norm_epsilon, .affine = false});
}

/// The projection to heads, whose queries and keys may have norms.
class NormedHeads {
 public:
  NormedHeads(const ModelShape& s, const std::string& name, nn::Layers& make)
      : qkv_(make.heads(name + ".qkv", s.attention(), {.deviation = glorot(s.hidden, 3 * s.hidden)})) {
    if (!s.own.as<MmditSizes>().head_norms) return;
    q_norm_ = make.head_norm(name + ".q_norm", s.head_dim, {.epsilon = kHeadNorm});
    k_norm_ = make.head_norm(name + ".k_norm", s.head_dim, {.epsilon = kHeadNorm});
  }

  nn::Heads forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    nn::Heads heads = qkv_->forward(x, step);
    if (!q_norm_) return heads;
    heads.q = q_norm_->forward(heads.q);
    heads.k = k_norm_->forward(heads.k);
    return heads;
  }

 private:
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Norm> q_norm_, k_norm_;  // null = no norms
};

/// The attention of words and patches as one sequence.
class JointAttention {
 public:
  JointAttention(const ModelShape& s, const std::string& name, std::shared_ptr<const MmditPlaces> places,
                 nn::Layers& make)
      : own_(s.own.as<MmditSizes>()),
        places_(std::move(places)),
        joint_(make),
        attention_(make.attention(name, s.attention(), {.causal = false})) {
    for (const int64_t features : own_.axes) axes_.emplace_back(features, kTheta);
  }

  nn::JointSteps steps(const nn::ForwardContext& step) const {
    return joint_.steps(step, mmdit_words(*step.batch), mmdit_grid(own_, *step.batch).count());
  }
  /// Returns the attention of words and patches, for Layers::from_heads() of each.
  std::pair<nn::Inside, nn::Inside> forward(const nn::Heads& words, const nn::Heads& patches,
                                            const nn::JointSteps& steps) const {
    const at::Tensor y = forward(joint_.heads(words, patches, steps), steps).tensor;
    const int64_t first = words.q.size(1);
    return {{y.narrow(1, 0, first)}, {y.narrow(1, first, y.size(1) - first)}};
  }
  /// Returns the attention of heads of both.
  nn::Inside forward(nn::Heads heads, const nn::JointSteps& steps) const {
    if (!axes_.empty()) nn::turn(heads, places_->of(*steps.both.batch), axes_);
    return attention_->forward(heads, steps.both);
  }

 private:
  MmditSizes own_;
  std::shared_ptr<const MmditPlaces> places_;
  nn::JointSequence joint_;
  std::unique_ptr<nn::Attention> attention_;
  std::vector<ops::RotaryTable> axes_;  // empty = nothing turns
};

/// What a double block has for words, or for patches.
class Stream {
 public:
  /// `ends`: the other stream attends to this one, whose result nothing reads.
  Stream(const ModelShape& s, const std::string& name, bool ends, nn::Layers& make)
      : modulation_(make.modulation(name + (ends ? ".end.modulation" : ".modulation"), s.hidden, ends ? 2 : 6)),
        norm_1_(plain_norm(s, name + ".norm_1", make)),
        heads_(s, name + ".attention", make) {
    if (ends) return;
    out_ = make.from_heads(name + ".attention.out", s.attention(), {.deviation = glorot(s.hidden, s.hidden)});
    norm_2_ = plain_norm(s, name + ".norm_2", make);
    up_ = make.expand(name + ".mlp.up", s.hidden, s.ffn, {.deviation = glorot(s.hidden, s.ffn)});
    down_ = make.contract(name + ".mlp.down", s.ffn, s.hidden, {.deviation = glorot(s.hidden, s.ffn)});
  }

  /// Returns shift, scale and gate of both branches; if the stream ends, the first two.
  std::vector<at::Tensor> modulation(const at::Tensor& condition) const { return modulation_->forward(condition); }
  nn::Heads heads(const at::Tensor& x, const std::vector<at::Tensor>& m, const nn::ForwardContext& step) const {
    return heads_.forward(nn::modulated(norm_1_->forward(x), m[0], m[1]), step);
  }
  at::Tensor after(const at::Tensor& x, const std::vector<at::Tensor>& m, const nn::Inside& attended,
                   const nn::ForwardContext& step) const {
    const at::Tensor h = x + m[2] * out_->forward(attended, step);
    const nn::Inside inside = up_->forward(nn::modulated(norm_2_->forward(h), m[3], m[4]));
    return h + m[5] * down_->forward(inside.map(ops::gelu, step));
  }

 private:
  std::unique_ptr<nn::Modulation> modulation_;
  std::unique_ptr<nn::Norm> norm_1_;
  NormedHeads heads_;
  std::unique_ptr<nn::OutputProjection> out_;  // null, as what follows, if the stream ends
  std::unique_ptr<nn::Norm> norm_2_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
};

class DoubleBlock {
 public:
  DoubleBlock(const ModelShape& s, const std::string& name, bool words_end,
              const std::shared_ptr<const MmditPlaces>& places, nn::Layers& make)
      : words_end_(words_end),
        patches_(s, name + ".patches", false, make),
        words_(s, name + ".text", words_end, make),
        attention_(s, name + ".attention", places, make) {}

  void forward(States& states, const nn::ForwardContext& step) const {
    at::Tensor &patches = states[kMmditHidden], &words = states[kMmditText];
    const nn::JointSteps steps = attention_.steps(step);
    // The gradients of both streams are summed here first, in the same order whether blocks are recomputed or not.
    const at::Tensor condition = at::alias(states[kMmditCondition]);
    const std::vector<at::Tensor> of_patches = patches_.modulation(condition), of_words = words_.modulation(condition);
    const auto [to_words, to_patches] = attention_.forward(words_.heads(words, of_words, steps.first),
                                                           patches_.heads(patches, of_patches, steps.second), steps);
    patches = patches_.after(patches, of_patches, to_patches, steps.second);
    if (!words_end_) words = words_.after(words, of_words, to_words, steps.first);
  }

 private:
  bool words_end_;
  Stream patches_, words_;
  JointAttention attention_;
};

class SingleBlock {
 public:
  SingleBlock(const ModelShape& s, const std::string& name, const std::shared_ptr<const MmditPlaces>& places,
              nn::Layers& make)
      : modulation_(make.modulation(name + ".modulation", s.hidden, 3)),
        norm_(plain_norm(s, name + ".norm", make)),
        heads_(s, name + ".attention", make),
        attention_(s, name + ".attention", places, make),
        up_(make.expand(name + ".mlp.up", s.hidden, s.ffn, {.deviation = glorot(s.hidden, s.ffn)})),
        out_(make.from_heads(name + ".out", s.attention(),
                             {.deviation = glorot(s.hidden + s.ffn, s.hidden), .segments = {{s.ffn}}})) {}

  void forward(States& states, const nn::ForwardContext& step) const {
    const nn::JointSteps steps = attention_.steps(step);
    const int64_t words = states[kMmditText].size(1), patches = states[kMmditHidden].size(1);
    const at::Tensor x = at::cat({states[kMmditText], states[kMmditHidden]}, 1);
    const std::vector<at::Tensor> m = modulation_->forward(states[kMmditCondition]);  // shift, scale and gate
    const at::Tensor read = nn::modulated(norm_->forward(x), m[0], m[1]);
    const nn::Inside attended = attention_.forward(heads_.forward(read, steps.both), steps);
    const nn::Inside inside = up_->forward(read).map(ops::gelu, step);
    const at::Tensor y = x + m[2] * out_->forward(attended, inside, steps.both);
    states[kMmditText] = y.narrow(1, 0, words);
    states[kMmditHidden] = y.narrow(1, words, patches);
  }

 private:
  std::unique_ptr<nn::Modulation> modulation_;
  std::unique_ptr<nn::Norm> norm_;
  NormedHeads heads_;
  JointAttention attention_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::OutputProjection> out_;
};

}  // namespace mmdit

Block make_mmdit_block(const ModelShape& s, int64_t index, const std::shared_ptr<const MmditPlaces>& places,
                       nn::Layers& layers) {
  const auto made = [&](const auto& block) {
    const std::vector<int> writes =
        index + 1 == s.layers ? std::vector<int>{kMmditHidden} : std::vector{kMmditHidden, kMmditText};
    return Block({kMmditHidden, kMmditText, kMmditCondition}, writes,
                 [block](States& states, const nn::ForwardContext& step) { block->forward(states, step); });
  };
  const std::string name = concat("blocks.", index);
  if (index >= s.layers - s.own.as<MmditSizes>().single)
    return made(std::make_shared<const mmdit::SingleBlock>(s, name, places, layers));
  return made(std::make_shared<const mmdit::DoubleBlock>(s, name, index + 1 == s.layers, places, layers));
}

}  // namespace colossal::models
