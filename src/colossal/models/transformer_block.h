// The block of a transformer, attention and a feed-forward layer, in the variants that our families use:
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
#include "colossal/nn/attention.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/latent_heads.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/recompute.h"

namespace colossal::ops {
class RotaryTable;
}

namespace colossal::models {

/// Standard deviation of the initial weights of all our families.
inline constexpr double kDeviation = 0.02;
/// Maximum number of classes of a model; labels in data must be below it.
inline constexpr int64_t kMaxClasses = 1 << 24;

/// The kind of a norm and its options.
struct NormVariant {
  enum class Kind { Layer, Rms } kind = Kind::Layer;
  bool unit_offset = false;  ///< factors are 1 + w (nn::NormOptions, Gemma)
  bool bias = true;          ///< bias of a LayerNorm (PaLM: none)

  nn::NormOptions options(const ModelShape& shape) const { return {shape.norm_epsilon, unit_offset, bias}; }
};

/// Makes the norm of that variant over whole hidden states, with the shape's epsilon.
std::unique_ptr<nn::Norm> make_norm(const std::string& name, const NormVariant& variant, const ModelShape& shape,
                                    nn::Layers& layers);

/// The variant of a block. A block has two branches, attention and the feed-forward layer, which are added to its
/// input.
struct BlockVariant {
  /// Placement of the norms on a branch f.
  enum class Placement {
    Before,  ///< x + f(norm(x))
    After,   ///< norm(x + f(x)), as in the first transformers and BERT
    Around,  ///< x + norm(f(norm(x))), as in Gemma 2
  };
  /// The inputs of the two branches.
  enum class Branches {
    InTurn,    ///< the feed-forward layer reads the block's input plus the output of attention
    TwoNorms,  ///< both read the block's input, each through its own norm (GPT-NeoX); not with Placement::After
    OneNorm,   ///< both read the block's input through one norm (GPT-J, Falcon, PaLM); not with Placement::After
  };
  struct Biases {
    bool qkv = true, out = true, mlp = true;
  };

  NormVariant norm{};
  Placement placement = Placement::Before;
  Branches branches = Branches::InTurn;
  /// Activation inside the feed-forward layer. If `gated`, it maps [..., 2 ffn], gate and up, to [..., ffn].
  nn::Unary activation;
  bool gated = false;
  Biases bias{};  ///< biases of the linear layers
  /// Experts in place of the feed-forward layer (count 0 = the layer is dense). ffn 0 = the shape's. Activation, gates,
  /// biases and deviations are those of this variant
  nn::ExpertOptions experts{};
  int64_t shared_ffn = 0;   ///< features of the shared expert beside `experts`; 0 = none
  bool head_norms = false;  ///< an RMSNorm of each head of q and of k, before `rotary` (Qwen3)
  /// Projection of heads through latents (DeepSeek-V2); kv_rank 0 = off. Its table is `rotary`
  nn::LatentOptions latent{};
  int64_t v_head_dim = 0;  ///< features of a head of v, with `latent` only; 0 = head_dim
  nn::AttentionOptions attention{};
  /// Table that rotates q and k by their positions; null = off, e.g. if the hidden state contains position embeddings
  /// or if `attention` adds ALiBi biases
  std::shared_ptr<const ops::RotaryTable> rotary{};
};

/// Returns the variant of each block by its index in the model, e.g. windows in every second block (Gemma 2) or in the
/// last ones (Qwen2).
using BlockVariants = std::function<BlockVariant(int64_t layer)>;

/// Adds the blocks of a model of `shape` after the blocks that `model` has. Their parameters are named
/// "blocks.<index>." and then norm_1, attention.qkv (head_norms: attention.q_norm and k_norm; latent: the names of
/// nn/latent_heads.h after "attention" in place of qkv), attention.out, norm_2 (OneNorm: none), mlp.up (gated:
/// mlp.gate_up), mlp.down; with experts those of nn/experts.h under "mlp", and mlp.shared.up (or gate_up) and
/// mlp.shared.down, and the mixture is appended to Model::mixtures. Norms Around a branch add attention.post_norm and
/// mlp.post_norm.
/// Errors ("model"): Placement::After with branches that both read the block's input.
void add_transformer_blocks(Model& model, const ModelShape& shape, const BlockVariants& variants, nn::Layers& layers);
/// Adds the blocks of a model, all in one variant.
void add_transformer_blocks(Model& model, const ModelShape& shape, const BlockVariant& variant, nn::Layers& layers);

/// Makes one block outside Model::blocks in that variant. Its parameters are named "`name`." and then as those of
/// blocks. Appends its mixture, if it has one, to `mixtures`. Errors: as add_transformer_blocks().
Block::OfOne make_transformer_block(const std::string& name, const ModelShape& shape, const BlockVariant& variant,
                                    nn::Layers& layers, Mixtures& mixtures);

/// Refuses grouped queries. A family whose Hugging Face folders do not support them calls it in Architecture::settle.
/// Errors ("model"): kv_heads that differ from heads.
void refuse_grouped_queries(const ModelShape& shape);
/// Refuses free sizes of heads. A family whose folders store no head size calls it in Architecture::settle. `family`
/// includes its article, as in "a BLOOM".
/// Errors ("model"): heads x head_dim that differs from hidden.
void refuse_free_heads(const ModelShape& shape, const char* family);

}  // namespace colossal::models
