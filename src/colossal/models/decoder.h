// A language model of one stack of transformer blocks, from token ids to the next token. It contains what the GPT and
// LLaMA families share outside their blocks. Each family passes its differences:
//
//   Model make(const ModelShape& s, nn::Layers& layers) {
//     return make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);      // GPT-2
//   }
#pragma once
#include "colossal/models/multi_token.h"
#include "colossal/models/transformer_block.h"

namespace colossal::models {

/// The parts in which decoder families differ.
struct DecoderVariant {
  BlockVariant block{};    ///< variant of all blocks; its norm is also the norm outside the blocks
  BlockVariants blocks{};  ///< variant of each block, if they differ; null = `block` for all
  /// true = a table of learned positions is added to the embedding
  bool learned_positions = false;
  int64_t position_offset = 0;  ///< row of the position table that position 0 uses (OPT: 2)
  double embedding_deviation = kDeviation;
  double embedding_scale = 1;   ///< factor of the token rows, rounded to fp32 and then to their dtype (Gemma)
  bool embedding_norm = false;  ///< a norm after the embedding (BLOOM)
  /// The shape's dropout also applies after the embedding (BLOOM, Falcon, OPT: only in the blocks)
  bool embedding_dropout = true;
  /// Number of features in the rows of the embedding and of the head, if linear layers convert them to hidden features
  /// and back (OPT-350M); 0 = the hidden size
  int64_t word_features = 0;
  bool final_norm = true;  ///< a norm before the head (false for OPT with norms after the sums)
  bool head_bias = false;  ///< one bias per token of the vocabulary (GPT-J)
  double head_scale = 1;   ///< factor of the logits (PaLM)
  double soft_cap = 0;     ///< nn::LmHeadOptions::soft_cap (Gemma 2); 0 = off
  /// Multi-token layers; null `block` = the variants of the blocks. They read rows of the embedding as they are stored,
  /// so the options that change these rows must be off
  MultiTokenOptions multi_token{};
};

/// Name of the head of a model with outputs (ModelShape::outputs), and of its weight in Hugging Face folders.
inline constexpr char kScoreHead[] = "head.score", kScoreTensor[] = "score.weight";
/// Name of the head of values (ModelShape::has_values).
inline constexpr char kValueHead[] = "head.values";

/// Returns a shape with the usual sizes of the GPT families: as many kv heads as heads, head_dim = hidden / heads, and
/// ffn = 4 x hidden.
ModelShape gpt_layout(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t positions = 2048);

/// Builds the model of `shape` in that variant, whose multi_token.layers must be those of the shape. In addition to the
/// parameters of the blocks it has embedding, positions, embedding_projection, embedding_norm, norm, head.projection,
/// `head` if the shape is not `tied` or has a head bias, and those of multi-token layers. A shape with outputs has
/// head.score in place of the last two, and ends in the outputs [B, S, outputs], in fp32 (fp64 in fp64 models).
Model make_decoder(const ModelShape& shape, const DecoderVariant& variant, nn::Layers& layers);

}  // namespace colossal::models
