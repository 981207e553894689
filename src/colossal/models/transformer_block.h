// The block of a transformer, attention and then a feed-forward layer, in the variants that our families have:
//
//   add_transformer_blocks(model, s, {.activation = ops::gelu}, layers);                                      // GPT-2
//   add_transformer_blocks(model, s, {.activation = ops::gelu, .attention = {.window = 128}}, layers);
#pragma once
#include <cstdint>
#include <memory>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"

namespace colossal::ops {
class RotaryTable;
}

namespace colossal::models {

/// Of the initial weights of all our families.
inline constexpr double kDeviation = 0.02;
/// As many as labels of data may name.
inline constexpr int64_t kMostClasses = 1 << 24;

struct BlockVariant {
  enum class Norm { Layer, Rms } norm = Norm::Layer;
  /// x + f(norm(x)). Otherwise norm(x + f(x)), as the first transformers and BERT.
  bool norm_first = true;
  /// Inside the feed-forward layer. Where that is `gated`, it is given [..., 2 ffn], gate and up, and gives [..., ffn].
  nn::Unary activation;
  bool gated = false;
  bool bias = true;  ///< of linear layers
  nn::AttentionOptions attention{};
  std::shared_ptr<const ops::RotaryTable> rotary{};  ///< of positions; null: the hidden state says them
};

/// The blocks of a model of `shape`, behind those that `model` has. Their parameters are called "blocks.<index>." and
/// then norm_1, attention.qkv, attention.out, norm_2, mlp.up (gated: mlp.gate_up), mlp.down.
void add_transformer_blocks(Model& model, const ModelShape& shape, const BlockVariant& variant, nn::Layers& layers);

/// What a family calls in its `settle` whose Hugging Face folders know no grouped queries.
/// Errors ("model"): kv_heads that are not heads.
void refuse_grouped_queries(const ModelShape& shape);

}  // namespace colossal::models
