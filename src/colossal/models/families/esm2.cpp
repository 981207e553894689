#include "colossal/models/families/esm2.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/esm2_layers.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void Esm2Sizes::fields(Fields& f) {
  f.flag("token_dropout", token_dropout,
         "embeddings of mask tokens are zeros, and the others are scaled by the share of masked tokens");
  f.integer("mask_token", mask_token, "", "id of the mask token; -1 = the last id of the vocabulary", -1, kMaxSize);
  f.number("rope_theta", rope_theta, "", "base of the rotary frequencies", 1, 1e12);
}

namespace esm2 {  // a namespace of its own, because every family has functions of these names

Task task(const ModelShape&) { return {.writes = Writes::Nothing, .objective = "masked-token"}; }

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  refuse_free_heads(s, "an ESM-2");
  const auto mask = s.own.as<Esm2Sizes>().mask_token;
  require(s.head_dim % 2 == 0, "model", "heads of an ESM-2 must have an even size, whose halves are rotated: got ",
          s.head_dim, "; change model.heads or model.hidden");
  require(s.vocabulary == 0 || mask < s.vocabulary, "model", "mask_token must be an id of the vocabulary of ",
          s.vocabulary, ": got ", mask, "; set it to -1 for the last one");
}

/// Adds the norm after the blocks to the last one, because it ends the hidden states that embeddings are made of, and
/// what follows belongs to the head.
void end_with_norm(Model& model, const ModelShape& s, nn::Layers& layers) {
  const std::shared_ptr<nn::Norm> norm =
      layers.layer_norm(concat("blocks.", s.layers - 1, ".", kEsm2EndNorm), s.hidden, {s.norm_epsilon});
  model.blocks.back().run = [norm, run = model.blocks.back().run](States& states, const nn::ForwardContext& step) {
    run(states, step);
    states[0] = norm->forward(states[0]);
  };
}

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"ids", "positions"};
  const auto own = s.own.as<Esm2Sizes>();
  const Esm2Masking masking{own.token_dropout, own.mask_token < 0 ? s.vocabulary - 1 : own.mask_token};
  const auto embedding = std::make_shared<const Esm2Embedding>("embedding", s.vocabulary, s.hidden, masking, layers);
  model.embed = [embedding](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return embedding->forward(batch.at("ids"), step);
  };
  add_transformer_blocks(model, s, esm2_block(s, own.rope_theta), layers);
  end_with_norm(model, s, layers);
  std::shared_ptr<nn::Dense> dense = layers.dense("head.transform", s.hidden, s.hidden, {.deviation = kDeviation});
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("head.norm", s.hidden, {s.norm_epsilon});
  model.norm = [=](const at::Tensor& x, const nn::ForwardContext&) {
    return norm->forward(ops::exact_gelu(dense->forward(x)));
  };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary,
                              {.deviation = kDeviation, .tied = s.tied ? &embedding->table() : nullptr, .bias = true});
  return model;
}

ModelShape sized(int64_t hidden, int64_t layers, int64_t heads) {
  return {.vocabulary = 33,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = 4 * hidden,
          .positions = 1026,
          .norm_epsilon = 1e-5};
}

std::vector<Preset> presets() {
  return {{"esm2-tiny", sized(64, 4, 4)},    {"esm2-8m", sized(320, 6, 20)},     {"esm2-35m", sized(480, 12, 20)},
          {"esm2-150m", sized(640, 30, 20)}, {"esm2-650m", sized(1280, 33, 20)}, {"esm2-3b", sized(2560, 36, 40)}};
}

}  // namespace esm2

Architecture esm2_architecture() {
  return {.name = "esm2",
          .own = Esm2Sizes{},
          .presets = esm2::presets(),
          .make = esm2::make,
          .task = esm2::task,
          .settle = esm2::settle,
          .hugging_face = esm2_folder()};
}

}  // namespace colossal::models
