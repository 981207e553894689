#include "colossal/models/decoder.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"

namespace colossal::models {
namespace {

/// Returns x times the factor as rounded to x's dtype, because transformers multiplies by a factor that it has rounded
/// twice.
at::Tensor scaled(const at::Tensor& x, double factor) {
  if (factor == 1) return x;
  const at::Tensor rounded = at::scalar_tensor(static_cast<float>(factor), at::kFloat).to(x.scalar_type());
  return x * rounded.to(at::kDouble).item<double>();
}

/// Makes the projection between the embedding's rows and hidden states; null if both have the same width.
std::shared_ptr<nn::Dense> make_projection(const std::string& name, int64_t in, int64_t out, nn::Layers& layers) {
  if (in == out) return nullptr;
  return layers.dense(name, in, out, {.bias = false, .deviation = kDeviation});
}

int64_t word_features(const ModelShape& s, const DecoderVariant& variant) {
  return variant.word_features == 0 ? s.hidden : variant.word_features;
}

Embed make_embedding(const ModelShape& s, const DecoderVariant& variant, std::shared_ptr<nn::Embedding> tokens,
                     nn::Layers& layers) {
  const int64_t offset = variant.position_offset;
  std::shared_ptr<nn::Dense> projection =
      make_projection("embedding_projection", word_features(s, variant), s.hidden, layers);
  std::shared_ptr<nn::Embedding> positions;
  if (variant.learned_positions)
    positions = layers.positions("positions", s.positions + offset, s.hidden, kDeviation / 2);
  std::shared_ptr<nn::Norm> norm;
  if (variant.embedding_norm) norm = make_norm("embedding_norm", variant.block.norm, s, layers);
  std::shared_ptr<nn::Dropout> dropout =
      layers.dropout("embedding.dropout", s.hidden, variant.embedding_dropout ? s.dropout : 0);
  return [=, scale = variant.embedding_scale](const tensor::Batch& batch, const nn::ForwardContext& step) {
    at::Tensor x = scaled(tokens->forward(batch.at("ids"), step), scale);
    if (projection) x = projection->forward(x);
    if (positions) x = x + positions->forward(offset == 0 ? step.positions : step.positions + offset, step);
    if (norm) x = norm->forward(x);
    return dropout->forward(x, step);
  };
}

void add_multi_token_layers(Model& model, const ModelShape& s, const DecoderVariant& variant,
                            const std::shared_ptr<nn::Embedding>& tokens, nn::Layers& layers) {
  MultiTokenOptions options = variant.multi_token;
  if (!options.block) options.block = variant.blocks;
  if (!options.block) options.block = [block = variant.block](int64_t) { return block; };
  const auto extra = std::make_shared<const MultiTokenLayers>(s, options, tokens, model.head, layers, model.mixtures);
  model.tokens_ahead = options.layers;
  model.multi_token = extra;
  model.norm = [extra, norm = model.norm](const at::Tensor& x, const nn::ForwardContext& step) {
    return extra->with_loss(norm(x, step), step);
  };
}

/// Makes the head of values, which starts at 0. Folders do not contain it.
std::shared_ptr<nn::Outputs> make_values(int64_t width, nn::Layers& layers) {
  std::shared_ptr<nn::Outputs> values = layers.outputs(kValueHead, width, 1, {.bias = false, .deviation = 0});
  layers.parameters().at(concat(kValueHead, ".weight")).is_added = true;
  return values;
}

}  // namespace

ModelShape gpt_layout(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t positions) {
  return {.vocabulary = vocabulary,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / std::max<int64_t>(1, heads),  // validate() refuses values that do not fit
          .ffn = 4 * std::clamp<int64_t>(hidden, 0, kMaxSize),
          .positions = positions};
}

Model make_decoder(const ModelShape& s, const DecoderVariant& variant, nn::Layers& layers) {
  Model model;
  model.fields = {"ids", "positions"};
  std::shared_ptr<nn::Embedding> tokens =
      layers.embedding("embedding", s.vocabulary, word_features(s, variant), variant.embedding_deviation);
  model.embed = make_embedding(s, variant, tokens, layers);
  if (variant.blocks)
    add_transformer_blocks(model, s, variant.blocks, layers);
  else
    add_transformer_blocks(model, s, variant.block, layers);
  std::shared_ptr<nn::Norm> norm;
  if (variant.final_norm) norm = make_norm("norm", variant.block.norm, s, layers);
  const int64_t width = word_features(s, variant);
  std::shared_ptr<nn::Dense> projection = make_projection("head.projection", s.hidden, width, layers);
  const auto end = [norm, projection](const at::Tensor& x) {
    const at::Tensor normed = norm ? norm->forward(x) : x;
    return projection ? projection->forward(normed) : normed;
  };
  if (s.outputs() > 0) {
    // They start at 0, so all texts have the same score at first. The product is one of fp32.
    std::shared_ptr<nn::Outputs> outputs =
        layers.outputs(kScoreHead, width, s.outputs(), {.bias = false, .deviation = 0});
    model.norm = [end, outputs](const at::Tensor& x, const nn::ForwardContext& step) {
      const at::Tensor hidden = end(x);
      return outputs->forward(hidden.to(at::promote_types(hidden.scalar_type(), at::kFloat)), step);
    };
    return model;
  }
  model.norm = [end, scale = variant.head_scale](const at::Tensor& x, const nn::ForwardContext&) {
    const at::Tensor words = end(x);
    return scale == 1 ? words : words * scale;
  };
  model.head = layers.lm_head("head", width, s.vocabulary,
                              {.deviation = kDeviation,
                               .tied = s.tied ? tokens.get() : nullptr,
                               .bias = variant.head_bias,
                               .soft_cap = variant.soft_cap});
  if (s.has_values()) model.values = make_values(width, layers);
  if (variant.multi_token.layers > 0) add_multi_token_layers(model, s, variant, tokens, layers);
  return model;
}

}  // namespace colossal::models
