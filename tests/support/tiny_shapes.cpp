// The tiny models that parity.h declares.
#include <ATen/ATen.h>

#include "colossal/models/decoder.h"
#include "colossal/models/families/bert.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/families/dit.h"
#include "colossal/models/families/esm2.h"
#include "colossal/models/families/mmdit.h"
#include "colossal/models/families/stdit.h"
#include "colossal/models/families/t5.h"
#include "colossal/models/families/unet.h"
#include "colossal/models/families/vit.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"
#include "support/parity.h"

namespace colossal::test {
namespace {

/// Makes a decoder with grouped queries, linear biases and a window, and without any other positions.
models::Model make_biased(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model;
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
  model.embed = [=](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at("ids"), step);
  };
  models::add_transformer_blocks(
      model, s, {.activation = ops::gelu, .attention = {.window = 9, .alibi = true, .soft_cap = 3}}, layers);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  model.norm = [norm](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary, {});
  return model;
}

/// Returns the variant of a layer of make_mixed(). The variants repeat: one norm for both branches; two norms, a window
/// and rotary positions; norms around the branches, head norms and gates.
models::BlockVariant mixed_block(const models::ModelShape& s, int64_t layer) {
  using models::BlockVariant, models::NormVariant;
  const auto rotary = std::make_shared<const ops::RotaryTable>(s.head_dim, 100.0);
  if (layer % 3 == 0)
    return {.branches = BlockVariant::Branches::OneNorm, .activation = ops::gelu, .bias = {.out = false, .mlp = false}};
  if (layer % 3 == 1)
    return {.branches = BlockVariant::Branches::TwoNorms,
            .activation = ops::exact_gelu,
            .bias = {.qkv = false},
            .attention = {.window = 4},
            .rotary = rotary};
  return {.norm = {NormVariant::Kind::Rms, /*unit_offset=*/true},
          .placement = BlockVariant::Placement::Around,
          .activation = [](const at::Tensor& both) { return ops::swiglu(both); },
          .gated = true,
          .bias = {.qkv = false, .out = false, .mlp = false},
          .head_norms = true,
          .rotary = rotary};
}

models::Model make_mixed(const models::ModelShape& s, nn::Layers& layers) {
  return models::make_decoder(s,
                              {.blocks = [&s](int64_t layer) { return mixed_block(s, layer); },
                               .learned_positions = true,
                               .position_offset = 2,
                               .embedding_scale = 3,
                               .embedding_norm = true,
                               .head_bias = true,
                               .soft_cap = 3},
                              layers);
}

/// Returns the variant of a layer of make_projected(). The variants repeat: norms after the sums, scaled linear biases,
/// capped scores and a window; gates, a part of each head rotated, capped scores and another window; rotary positions
/// that depend on the length of the text, which exceeds the original length.
models::BlockVariant projected_block(const models::ModelShape& s, int64_t layer) {
  using models::BlockVariant;
  if (layer % 3 == 0)
    return {.norm = {.bias = false},
            .placement = BlockVariant::Placement::After,
            .activation = ops::exact_gelu,
            .attention = {.window = 4, .alibi = true, .alibi_scale = 0.6, .soft_cap = 0.8}};
  if (layer % 3 == 1)
    return {.activation = ops::geglu,
            .gated = true,
            .bias = {.out = false},
            .attention = {.window = 5, .soft_cap = 0.5, .scale = 0.9},
            .rotary = std::make_shared<const ops::RotaryTable>(s.head_dim / 2, 100.0)};
  return {.branches = BlockVariant::Branches::OneNorm,
          .activation = ops::gelu,
          .rotary = std::make_shared<const ops::RotaryTable>(
              s.head_dim, 100.0,
              ops::RotaryScaling{.kind = ops::RotaryScaling::Kind::Dynamic, .factor = 4, .original_positions = 3})};
}

models::Model make_projected(const models::ModelShape& s, nn::Layers& layers) {
  return models::make_decoder(s,
                              {.blocks = [&s](int64_t layer) { return projected_block(s, layer); },
                               .embedding_deviation = 0.5,
                               .embedding_dropout = false,
                               .word_features = s.hidden / 2,
                               .final_norm = false,
                               .head_bias = true,
                               .head_scale = 0.7},
                              layers);
}

}  // namespace

models::ModelShape tiny_gpt2() {
  return {.architecture = models::built_in().at("gpt2"),
          .vocabulary = 43,
          .hidden = 24,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 6,
          .ffn = 52,
          .positions = 16};
}

models::ModelShape tiny_t5(bool is_first) {
  return {.architecture = models::built_in().at("t5"),
          .vocabulary = 37,
          .hidden = 24,
          .layers = 5,
          .heads = 3,
          .kv_heads = 3,
          .head_dim = 6,
          .ffn = 22,
          .positions = 16,
          .tied = is_first,
          .own = models::T5Sizes{.decoder_layers = 3,
                                 .source_tokens = 4,
                                 .buckets = 8,
                                 .max_distance = 12,
                                 .activation = is_first ? "relu" : "gelu_new",
                                 .gated = !is_first,
                                 .scaled_head = is_first}};
}

models::ModelShape tiny_llama() {
  return {.architecture = models::built_in().at("llama"),
          .vocabulary = 37,
          .hidden = 24,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .head_dim = 4,
          .ffn = 22,
          .positions = 16,
          .tied = false};
}

models::ModelShape tiny_deepseek() {
  const models::ExpertKeys experts{.count = 4,
                                   .used = 2,
                                   .ffn = 10,
                                   .shared = 1,
                                   .dense_first = 1,
                                   .score = "sigmoid",
                                   .scale = 1.5,
                                   .groups = 2,
                                   .groups_used = 1,
                                   .balance_loss = 0.01,
                                   .bias = true,
                                   .bias_rate = 0.001};
  return {.architecture = models::built_in().at("deepseek"),
          .vocabulary = 37,
          .hidden = 24,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 6,
          .ffn = 22,
          .positions = 16,
          .tied = false,
          .own =
              models::DeepseekSizes{
                  .q_rank = 10, .kv_rank = 8, .nope_dim = 4, .rope_dim = 2, .v_dim = 5, .experts = experts},
          .parts = {models::MixtureSizes{experts.count}}};
}

models::ModelShape tiny_vit() {
  return {.architecture = models::built_in().at("vit"),
          .hidden = 24,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 6,
          .ffn = 52,
          .positions = 5,
          .norm_epsilon = 1e-12,
          .tied = false,
          .own = models::VitSizes{.side = 8, .channels = 3, .patch = 4, .classes = 7}};
}

models::ModelShape tiny_deit() {
  models::ModelShape shape = tiny_vit();
  shape.architecture = models::built_in().at("deit");
  shape.positions = 6;
  return shape;
}

models::ModelShape tiny_dit() {
  models::ModelShape shape{
      .architecture = models::built_in().at("dit"),
      .hidden = 24,
      .layers = 2,
      .heads = 4,
      .kv_heads = 4,
      .head_dim = 6,
      .ffn = 52,
      .norm_epsilon = 1e-6,
      .tied = false,
      .own = models::DitSizes{.height = 4, .width = 8, .channels = 3, .patch = 2, .classes = 5, .learned_sigma = true}};
  shape.architecture->settle(shape);
  return shape;
}

models::ModelShape tiny_unet(int64_t groups) {
  models::ModelShape shape{.architecture = models::built_in().at("unet"),
                           .tied = false,
                           .own = models::UnetSizes{.height = 4,
                                                    .width = 6,
                                                    .channels = 3,
                                                    .outputs = 2,
                                                    .features = {8, 16},
                                                    .resnets = 1,
                                                    .transformers = {1, 0},
                                                    .attention_heads = {2, 2},
                                                    .text = 12,
                                                    .groups = groups}};
  shape.architecture->settle(shape);
  return shape;
}

models::ModelShape tiny_sd3(int64_t words) {
  models::ModelShape shape{
      .architecture = models::built_in().at("sd3"),
      .hidden = 24,
      .layers = 2,
      .heads = 4,
      .kv_heads = 4,
      .head_dim = 6,
      .ffn = 52,
      .norm_epsilon = 1e-6,
      .tied = false,
      .own = models::MmditSizes{
          .height = 4, .width = 8, .channels = 3, .text = 12, .text_tokens = words, .pooled = 10, .table = 5}};
  shape.architecture->settle(shape);
  return shape;
}

models::ModelShape tiny_flux(int64_t words) {
  models::ModelShape shape = tiny_sd3(words);
  shape.architecture = models::built_in().at("flux");
  auto own = shape.own.as<models::MmditSizes>();
  own.single = 1;
  own.table = 0;
  own.axes = {2, 2, 2};
  own.head_norms = own.told_guidance = true;
  shape.own = own;
  shape.architecture->settle(shape);
  return shape;
}

models::ModelShape tiny_open_sora(int64_t words) {
  models::ModelShape shape = tiny_flux(words);
  shape.architecture = models::built_in().at("open-sora");
  auto own = shape.own.as<models::MmditSizes>();
  own.frames = 3, own.height = 3, own.width = 5;  // 2 x 3 patches, the last of which are padded
  own.told_guidance = false;
  shape.own = own;
  shape.architecture->settle(shape);
  return shape;
}

models::ModelShape tiny_stdit() {
  models::ModelShape shape{
      .architecture = models::built_in().at("stdit"),
      .hidden = 24,
      .layers = 2,
      .heads = 4,
      .kv_heads = 4,
      .head_dim = 6,
      .ffn = 52,
      .norm_epsilon = 1e-6,
      .tied = false,
      .own = models::StditSizes{.frames = 3, .height = 3, .width = 5, .channels = 3, .text = 12, .tokens = 7}};
  shape.architecture->settle(shape);
  return shape;
}

models::ModelShape tiny_bert(const std::string& objective) {
  return {.architecture = models::built_in().at("bert"),
          .vocabulary = 41,
          .hidden = 24,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 6,
          .ffn = 50,
          .positions = 16,
          .norm_epsilon = 1e-12,
          .tied = objective == "masked-token",
          .own = models::BertSizes{.objective = objective, .classes = 5}};
}

models::ModelShape tiny_esm2() {
  return {.architecture = models::built_in().at("esm2"),
          .vocabulary = 9,
          .hidden = 24,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_dim = 6,
          .ffn = 50,
          .positions = 16,
          .own = models::Esm2Sizes{}};
}

models::ModelShape tiny_biased() {
  models::ModelShape shape = tiny_llama();
  shape.architecture =
      std::make_shared<models::Architecture>(models::Architecture{.name = "biased", .make = make_biased});
  return shape;
}

models::ModelShape tiny_mixed() {
  models::ModelShape shape = tiny_llama();
  shape.layers = 3;
  shape.tied = true;
  shape.architecture =
      std::make_shared<models::Architecture>(models::Architecture{.name = "mixed", .make = make_mixed});
  return shape;
}

models::ModelShape tiny_projected() {
  models::ModelShape shape = tiny_mixed();
  shape.architecture =
      std::make_shared<models::Architecture>(models::Architecture{.name = "projected", .make = make_projected});
  return shape;
}

}  // namespace colossal::test
