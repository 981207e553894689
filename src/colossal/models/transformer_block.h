// The block of a transformer, attention and a feed-forward layer, in the variants that our families have:
//
//   add_transformer_blocks(model, s, {.activation = ops::gelu}, layers);                                      // GPT-2
//   add_transformer_blocks(model, s, {.branches = BlockVariant::Branches::OneNorm, .activation = ops::gelu}, layers);
//   add_transformer_blocks(model, s, [&](int64_t layer) { return variant(layer % 2 == 0); }, layers);  // alternating
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "colossal/models/model.h"
#include "colossal/models/shape.h"

namespace colossal::ops {
class RotaryTable;
}

namespace colossal::models {

/// Standard deviation of the initial weights of all our families.
inline constexpr double kDeviation = 0.02;
/// As many as labels of data may name.
inline constexpr int64_t kMostClasses = 1 << 24;

struct NormVariant {
  enum class Kind { Layer, Rms } kind = Kind::Layer;
  bool unit_offset = false;  ///< factors are 1 + w (nn::NormOptions, Gemma)
  bool bias = true;          ///< of a LayerNorm (PaLM: none)

  nn::NormOptions options(const ModelShape& shape) const { return {shape.norm_epsilon, unit_offset, bias}; }
};

/// The norm of that variant over whole hidden states, with the shape's epsilon.
std::unique_ptr<nn::Norm> make_norm(const std::string& name, const NormVariant& variant, const ModelShape& shape,
                                    nn::Layers& layers);

/// A block has two branches, attention and the feed-forward layer, which are added to its input.
struct BlockVariant {
  /// Where norms stand at a branch f.
  enum class Placement {
    Before,  ///< x + f(norm(x))
    After,   ///< norm(x + f(x)), as the first transformers and BERT
    Around,  ///< x + norm(f(norm(x))), as Gemma 2
  };
  enum class Branches {
    InTurn,    ///< the feed-forward layer reads what attention has been added to
    TwoNorms,  ///< both read the block's input, each through a norm of its own (GPT-NeoX); not with norms After
    OneNorm,   ///< both read the block's input through one norm (GPT-J, Falcon, PaLM); not with norms After
  };
  struct Biases {
    bool qkv = true, out = true, mlp = true;
  };

  NormVariant norm{};
  Placement placement = Placement::Before;
  Branches branches = Branches::InTurn;
  /// Inside the feed-forward layer. Where that is `gated`, it is given [..., 2 ffn], gate and up, and gives [..., ffn].
  nn::Unary activation;
  bool gated = false;
  Biases bias{};            ///< of linear layers
  bool head_norms = false;  ///< an RMSNorm of each head of q and of k, in front of `rotary` (Qwen3)
  nn::AttentionOptions attention{};
  std::shared_ptr<const ops::RotaryTable> rotary{};  ///< of positions; null: the hidden state says them
};

/// The variant of each block, by its index in the model: windows of every second one (Gemma 2), of the last (Qwen2).
using BlockVariants = std::function<BlockVariant(int64_t layer)>;

/// The blocks of a model of `shape`, behind those that `model` has. Their parameters are called "blocks.<index>." and
/// then norm_1, attention.qkv (head_norms: attention.q_norm and k_norm), attention.out, norm_2 (OneNorm: none), mlp.up
/// (gated: mlp.gate_up), mlp.down; norms Around a branch: attention.post_norm and mlp.post_norm, too.
/// Errors ("model"): branches that both read the block's input and norms After.
void add_transformer_blocks(Model& model, const ModelShape& shape, const BlockVariants& variants, nn::Layers& layers);
/// All blocks of one variant.
void add_transformer_blocks(Model& model, const ModelShape& shape, const BlockVariant& variant, nn::Layers& layers);

/// What a family calls in its `settle` whose Hugging Face folders know no grouped queries.
/// Errors ("model"): kv_heads that are not heads.
void refuse_grouped_queries(const ModelShape& shape);
/// What one calls there whose folders say no size of a head; `family` with its article, as "a BLOOM".
/// Errors ("model"): heads that do not have hidden features together.
void refuse_free_heads(const ModelShape& shape, const char* family);

}  // namespace colossal::models
