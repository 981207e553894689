#include "colossal/models/transformer_block.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/recompute.h"

namespace colossal::models {
namespace {

using Placement = BlockVariant::Placement;
using Branches = BlockVariant::Branches;

/// Returns the deviation of the weights that end a branch. It keeps the variance of the residual stream constant, which
/// would grow without norms in it.
double residual_deviation(const ModelShape& s, Placement placement) {
  return placement == Placement::After ? kDeviation : kDeviation / std::sqrt(2.0 * static_cast<double>(s.layers));
}

/// The end of a branch: norm and dropout of its output, as the variant says.
class BranchEnd {
 public:
  BranchEnd(const std::string& name, const ModelShape& s, const BlockVariant& variant, nn::Layers& make)
      : norm_(variant.placement == Placement::Around ? make_norm(name + ".post_norm", variant.norm, s, make) : nullptr),
        dropout_(make.dropout(name + ".dropout", s.hidden, s.dropout)) {}
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    return dropout_->forward(norm_ ? norm_->forward(x) : x, step);
  }

 private:
  std::unique_ptr<nn::Norm> norm_;  // null = no norm
  std::unique_ptr<nn::Dropout> dropout_;
};

class AttentionBranch {
 public:
  AttentionBranch(const std::string& name, const ModelShape& s, const BlockVariant& variant, nn::Layers& make)
      : rotary_(variant.latent.kv_rank > 0 ? nullptr : variant.rotary) {
    const double deviation = residual_deviation(s, variant.placement);
    nn::AttentionShape shape = s.attention();
    if (variant.latent.kv_rank > 0) {
      nn::LatentOptions latent = variant.latent;
      latent.rotary = variant.rotary, latent.deviation = kDeviation;
      shape.v_head_dim = variant.v_head_dim;
      qkv_ = make.latent_heads(name, shape, latent);
    } else {
      qkv_ = make.heads(name + ".qkv", shape, {.bias = variant.bias.qkv, .deviation = kDeviation});
    }
    if (variant.head_norms) {
      q_norm_ = make.head_norm(name + ".q_norm", s.head_dim, variant.norm.options(s));
      k_norm_ = make.head_norm(name + ".k_norm", s.head_dim, variant.norm.options(s));
    }
    attention_ = make.attention(name, shape, variant.attention);
    out_ = make.from_heads(name + ".out", shape, {.bias = variant.bias.out, .deviation = deviation});
    end_ = std::make_unique<BranchEnd>(name, s, variant, make);
  }

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    nn::Heads heads = qkv_->forward(x, step);
    if (q_norm_) {
      heads.q = q_norm_->forward(heads.q);
      heads.k = k_norm_->forward(heads.k);
    }
    if (rotary_) nn::turn(heads, step, *rotary_);
    return end_->forward(out_->forward(attention_->forward(heads, step), step), step);
  }

 private:
  std::shared_ptr<const ops::RotaryTable> rotary_;  // null = not rotated, or already by qkv_
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Norm> q_norm_, k_norm_;  // null = no norm
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::OutputProjection> out_;
  std::unique_ptr<BranchEnd> end_;
};

class FeedForwardBranch {
 public:
  FeedForwardBranch(const std::string& name, const ModelShape& s, const BlockVariant& variant, nn::Layers& make)
      : activation_(variant.activation) {
    const double deviation = residual_deviation(s, variant.placement);
    const bool is_mixture = variant.experts.count > 0;
    if (is_mixture) {
      nn::ExpertOptions options = variant.experts;
      if (options.ffn == 0) options.ffn = s.ffn;
      options.activation = variant.activation;
      options.gated = variant.gated;
      options.linear_bias = variant.bias.mlp;
      options.deviation = kDeviation;
      options.down_deviation = deviation;
      experts_ = make.experts(name, s.hidden, options);
    }
    const int64_t ffn = is_mixture ? variant.shared_ffn : s.ffn;
    if (ffn > 0) make_dense(is_mixture ? name + ".shared" : name, s, ffn, variant, deviation, make);
    end_ = std::make_unique<BranchEnd>(name, s, variant, make);
  }

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    const auto dense = [&] { return down_->forward(up_->forward(x).map(activation_, step)); };
    if (!experts_) return end_->forward(dense(), step);
    const at::Tensor y = experts_->forward(x, step, up_ ? std::function<at::Tensor()>(dense) : nullptr);
    return end_->forward(y, step);
  }
  const std::shared_ptr<nn::Experts>& experts() const { return experts_; }

 private:
  void make_dense(const std::string& name, const ModelShape& s, int64_t ffn, const BlockVariant& variant,
                  double deviation, nn::Layers& make) {
    const bool bias = variant.bias.mlp;
    if (variant.gated)
      up_ = make.expand(name + ".gate_up", s.hidden, 2 * ffn,
                        {.bias = bias, .deviation = kDeviation, .segments = {{ffn}, {ffn}}});
    else
      up_ = make.expand(name + ".up", s.hidden, ffn, {.bias = bias, .deviation = kDeviation});
    down_ = make.contract(name + ".down", ffn, s.hidden, {.bias = bias, .deviation = deviation});
  }

  nn::Unary activation_;
  std::shared_ptr<nn::Experts> experts_;  // null = the layer is dense
  std::unique_ptr<nn::Expand> up_;        // with experts: the shared one; null = none
  std::unique_ptr<nn::Contract> down_;
  std::unique_ptr<BranchEnd> end_;
};

class TransformerBlock {
 public:
  TransformerBlock(const std::string& name, const ModelShape& s, const BlockVariant& variant, nn::Layers& make)
      : norms_after_(variant.placement == Placement::After), branches_(variant.branches) {
    require(branches_ == Branches::InTurn || !norms_after_, "model",
            "the branches of a block with post-norms must be sequential: got parallel branches; place the norms before "
            "or around the branches");
    norm_1_ = make_norm(name + ".norm_1", variant.norm, s, make);
    attention_ = std::make_unique<AttentionBranch>(name + ".attention", s, variant, make);
    if (branches_ != Branches::OneNorm) norm_2_ = make_norm(name + ".norm_2", variant.norm, s, make);
    feed_forward_ = std::make_unique<FeedForwardBranch>(name + ".mlp", s, variant, make);
  }

  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const {
    if (norms_after_) {
      const at::Tensor h = norm_1_->forward(x + attention_->forward(x, step));
      return norm_2_->forward(h + feed_forward_->forward(h, step));
    }
    const at::Tensor normed = norm_1_->forward(x);
    const at::Tensor h = x + attention_->forward(normed, step);
    if (branches_ == Branches::OneNorm) return h + feed_forward_->forward(normed, step);
    return h + feed_forward_->forward(norm_2_->forward(branches_ == Branches::TwoNorms ? x : h), step);
  }
  const std::shared_ptr<nn::Experts>& experts() const { return feed_forward_->experts(); }

 private:
  bool norms_after_;
  Branches branches_;
  std::unique_ptr<nn::Norm> norm_1_, norm_2_;  // norm_2_: null if both branches read norm_1_
  std::unique_ptr<AttentionBranch> attention_;
  std::unique_ptr<FeedForwardBranch> feed_forward_;
};

}  // namespace

std::unique_ptr<nn::Norm> make_norm(const std::string& name, const NormVariant& variant, const ModelShape& s,
                                    nn::Layers& layers) {
  return variant.kind == NormVariant::Kind::Rms ? layers.rms_norm(name, s.hidden, variant.options(s))
                                                : layers.layer_norm(name, s.hidden, variant.options(s));
}

Block::OfOne make_transformer_block(const std::string& name, const ModelShape& s, const BlockVariant& variant,
                                    nn::Layers& layers, Mixtures& mixtures) {
  const auto block = std::make_shared<const TransformerBlock>(name, s, variant, layers);
  if (block->experts()) mixtures.push_back(block->experts());
  return [block](const at::Tensor& x, const nn::ForwardContext& step) { return block->forward(x, step); };
}

void add_transformer_blocks(Model& model, const ModelShape& s, const BlockVariants& variants, nn::Layers& layers) {
  for (int64_t i = 0; i < s.layers; ++i)
    model.blocks.push_back(make_transformer_block(concat("blocks.", i), s, variants(i), layers, model.mixtures));
}

void add_transformer_blocks(Model& model, const ModelShape& s, const BlockVariant& variant, nn::Layers& layers) {
  add_transformer_blocks(model, s, [&](int64_t) { return variant; }, layers);
}

void refuse_grouped_queries(const ModelShape& s) {
  require(s.kv_heads == s.heads, "model", with_article(s.architecture->name),
          " must have kv_heads = heads, because its config.json has no key for kv_heads: got ", s.kv_heads, " and ",
          s.heads);
}

void refuse_free_heads(const ModelShape& s, const char* family) {
  require(s.head_dim * s.heads == s.hidden, "model", "heads * head_dim of ", family, " must be hidden, ", s.hidden,
          ": got ", s.heads, " of ", s.head_dim);
}

}  // namespace colossal::models
