#include "colossal/models/transformer_block.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {
namespace {

class TransformerBlock {
 public:
  TransformerBlock(const ModelShape& s, int64_t index, const BlockVariant& variant, nn::Layers& make)
      : variant_(variant) {
    const std::string name = concat("blocks.", index);
    const nn::LinearOptions in{.bias = variant.bias, .deviation = kDeviation};
    // keeps the variance of the residual stream, which grows where no norm stands in it
    const double scale = variant.norm_first ? std::sqrt(2.0 * s.layers) : 1;
    const nn::LinearOptions residual{.bias = variant.bias, .deviation = kDeviation / scale};
    nn::LinearOptions gated = in;
    gated.segments = {{s.ffn}, {s.ffn}};
    norm_1_ = make_norm(name + ".norm_1", s, make);
    qkv_ = make.heads(name + ".attention.qkv", s.attention(), in);
    attention_ = make.attention(name + ".attention", s.attention(), variant.attention);
    out_ = make.from_heads(name + ".attention.out", s.attention(), residual);
    norm_2_ = make_norm(name + ".norm_2", s, make);
    up_ = variant.gated ? make.expand(name + ".mlp.gate_up", s.hidden, 2 * s.ffn, gated)
                        : make.expand(name + ".mlp.up", s.hidden, s.ffn, in);
    down_ = make.contract(name + ".mlp.down", s.ffn, s.hidden, residual);
    drop_1_ = make.dropout(name + ".attention.dropout", s.hidden, s.dropout);
    drop_2_ = make.dropout(name + ".mlp.dropout", s.hidden, s.dropout);
  }

  at::Tensor forward(const at::Tensor& x, const nn::Step& step) const {
    if (!variant_.norm_first) {
      const at::Tensor h = norm_1_->forward(x + drop_1_->forward(attended(x, step), step));
      return norm_2_->forward(h + drop_2_->forward(fed_forward(h, step), step));
    }
    const at::Tensor h = x + drop_1_->forward(attended(norm_1_->forward(x), step), step);
    return h + drop_2_->forward(fed_forward(norm_2_->forward(h), step), step);
  }

 private:
  std::unique_ptr<nn::Norm> make_norm(const std::string& name, const ModelShape& s, nn::Layers& make) const {
    return variant_.norm == BlockVariant::Norm::Rms ? make.rms_norm(name, s.hidden, {s.norm_epsilon})
                                                    : make.layer_norm(name, s.hidden, {s.norm_epsilon});
  }
  at::Tensor attended(const at::Tensor& x, const nn::Step& step) const {
    nn::Heads heads = qkv_->forward(x, step);
    if (variant_.rotary) nn::turn(heads, step, *variant_.rotary);
    return out_->forward(attention_->forward(heads, step), step);
  }
  at::Tensor fed_forward(const at::Tensor& x, const nn::Step& step) const {
    return down_->forward(up_->forward(x).map(variant_.activation, step));
  }

  BlockVariant variant_;
  std::unique_ptr<nn::Norm> norm_1_, norm_2_;
  std::unique_ptr<nn::HeadProjection> qkv_;
  std::unique_ptr<nn::Attention> attention_;
  std::unique_ptr<nn::Expand> up_;
  std::unique_ptr<nn::OutputProjection> out_;
  std::unique_ptr<nn::Contract> down_;
  std::unique_ptr<nn::Dropout> drop_1_, drop_2_;
};

}  // namespace

void add_transformer_blocks(Model& model, const ModelShape& s, const BlockVariant& variant, nn::Layers& layers) {
  for (int64_t i = 0; i < s.layers; ++i) {
    const auto block = std::make_shared<const TransformerBlock>(s, i, variant, layers);
    model.blocks.push_back([block](const at::Tensor& x, const nn::Step& step) { return block->forward(x, step); });
  }
}

void refuse_grouped_queries(const ModelShape& s) {
  require(s.kv_heads == s.heads, "model", "a ", s.architecture->name,
          " must have as many kv_heads as heads, since no folder of one tells them apart: got ", s.kv_heads, " and ",
          s.heads);
}

}  // namespace colossal::models
