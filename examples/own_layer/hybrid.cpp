#include "hybrid.h"

#include <ATen/ATen.h>

namespace models = colossal::models;
namespace nn = colossal::nn;
namespace ops = colossal::ops;
using colossal::require;

void HybridSizes::fields(colossal::Fields& f) {
  f.integer("groups", groups, "groups", "groups of features that are normalized together", 1, 65536);
  f.integer("width", width, "tokens", "width of the convolution, with the token itself", 1, 64);
}

namespace {

constexpr double kDeviation = 0.02;  // standard deviation of initial weights

/// Normalizes the groups of features of each token. A rank may have a part of a group.
class GroupNorm {
 public:
  GroupNorm(const std::string& name, int64_t hidden, int64_t groups, double epsilon, nn::Layers& make)
      : features_(make.features(hidden, nn::Place::Outside)),
        weight_(make.vector(name + ".weight", {hidden}, {.init = nn::Init::ones()})),
        bias_(make.vector(name + ".bias", {hidden}, {})),
        groups_(groups),
        epsilon_(epsilon) {}

  at::Tensor forward(const at::Tensor& x) const {
    const double size = static_cast<double>(features_->size()) / static_cast<double>(groups_);
    const at::Tensor wide = x.to(at::promote_types(x.scalar_type(), at::kFloat));
    const at::Tensor centred = wide - features_->sum_of_groups(wide, groups_) / size;
    const at::Tensor variance = features_->sum_of_groups(centred.square(), groups_) / size;
    return (centred * (variance + epsilon_).rsqrt()).to(x.scalar_type()) * weight_->value() + bias_->value();
  }

 private:
  std::shared_ptr<const nn::Features> features_;
  std::unique_ptr<nn::Vector> weight_, bias_;
  int64_t groups_;
  double epsilon_;
};

/// y[t] = sum over k of taps[k] * x[t - width + 1 + k], for each feature alone, within a document.
class CausalConvolution {
 public:
  CausalConvolution(const std::string& name, int64_t hidden, int64_t width, nn::Layers& make)
      : neighbours_(make.neighbours({.before = width - 1})),
        taps_(make.vector(name + ".taps", {hidden, width}, {.init = nn::Init::normal(0.3), .decay = true})),
        width_(width) {}

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const nn::Halo halo = neighbours_->of(x, step);
    const at::Tensor taps = taps_->value();
    at::Tensor y = halo.at(0) * taps.select(1, width_ - 1);
    for (int64_t k = 0; k < width_ - 1; ++k) y = y + halo.at(k - width_ + 1) * taps.select(1, k);
    return y;
  }

 private:
  std::shared_ptr<const nn::Neighbours> neighbours_;
  std::unique_ptr<nn::Vector> taps_;
  int64_t width_;
};

/// A block, written as if for one process.
class Block {
 public:
  Block(const models::ModelShape& s, int64_t index, nn::Layers& make)
      : name_(colossal::concat("blocks.", index)),
        group_norm_(name_ + ".group_norm", s.hidden, s.own.as<HybridSizes>().groups, s.norm_epsilon, make),
        convolution_(name_ + ".convolution", s.hidden, s.own.as<HybridSizes>().width, make),
        norm_1_(make.rms_norm(name_ + ".norm_1", s.hidden, {s.norm_epsilon})),
        qkv_(make.heads(name_ + ".attention.qkv", s.attention(), {.bias = false, .deviation = kDeviation})),
        attention_(make.attention(name_ + ".attention", s.attention(), {})),
        out_(make.from_heads(name_ + ".attention.out", s.attention(), {.bias = false, .deviation = kDeviation})),
        norm_2_(make.rms_norm(name_ + ".norm_2", s.hidden, {s.norm_epsilon})),
        up_(make.expand(name_ + ".mlp.up", s.hidden, s.ffn, {.deviation = kDeviation})),
        down_(make.contract(name_ + ".mlp.down", s.ffn, s.hidden, {.deviation = kDeviation})) {}

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const at::Tensor mixed = x + at::silu(convolution_.forward(group_norm_.forward(x), step));
    const nn::Heads heads = qkv_->forward(norm_1_->forward(mixed), step);
    const at::Tensor h = mixed + out_->forward(attention_->forward(heads, step), step);
    return h + down_->forward(up_->forward(norm_2_->forward(h)).map(ops::gelu, step));
  }

 private:
  std::string name_;
  GroupNorm group_norm_;
  CausalConvolution convolution_;
  std::unique_ptr<nn::Norm> norm_1_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::OutputProjection> out_;
  std::unique_ptr<nn::Norm> norm_2_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::Contract> down_;
};

models::Model make(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model;
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, kDeviation);
  model.fields = {"ids"};
  model.embed = [tokens](const colossal::tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at("ids"), step);
  };
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const Block>(s, i, layers);
    model.blocks.push_back(
        [block](const at::Tensor& x, const nn::ForwardContext& step) { return block->forward(x, step); });
  }
  std::shared_ptr<nn::Norm> norm = layers.rms_norm("norm", s.hidden, {s.norm_epsilon});
  model.norm = [norm](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary, {.deviation = kDeviation});
  return model;
}

void settle(models::ModelShape& s) {
  const int64_t groups = s.own.as<HybridSizes>().groups;
  require(s.hidden % groups == 0, "model", "model.groups must divide the hidden size of ", s.hidden, ": got ", groups);
  require(s.dropout == 0, "model", "a hybrid has no dropout: got ", s.dropout, "; set model.dropout = 0");
}

}  // namespace

models::Architecture hybrid_architecture() {
  const models::ModelShape tiny{.vocabulary = 257,
                                .hidden = 48,
                                .layers = 4,
                                .heads = 4,
                                .kv_heads = 4,
                                .head_dim = 12,
                                .ffn = 96,
                                .positions = 256,
                                .tied = false};
  return {.name = "hybrid", .own = HybridSizes{}, .presets = {{"hybrid-tiny", tiny}}, .make = make, .settle = settle};
}
