// A language model of one stack of transformer blocks, from token ids to the next token: what the families of GPT and
// LLaMA share beside their blocks. A family says what is particular to it:
//
//   Model make(const ModelShape& s, nn::Layers& layers) {
//     return make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);      // GPT-2
//   }
#pragma once
#include "colossal/models/transformer_block.h"

namespace colossal::models {

struct DecoderVariant {
  BlockVariant block{};    ///< of all blocks, and the norm that stands outside of them, too
  BlockVariants blocks{};  ///< of each block, where they differ; none: all as `block`
  bool learned_positions = false;
  int64_t position_offset = 0;  ///< row of their table that position 0 has (OPT: 2)
  double embedding_deviation = kDeviation;
  double embedding_scale = 1;     ///< factor of the tokens' rows, rounded to fp32 and then to their dtype (Gemma)
  bool embedding_norm = false;    ///< a norm behind the embedding (BLOOM)
  bool embedding_dropout = true;  ///< the shape's dropout counts there, too (OPT, BLOOM, Falcon: in the blocks alone)
  /// Features of the embedding's and the head's rows, with linear layers from these to hidden ones and back (OPT-350M);
  /// 0: they are hidden ones
  int64_t word_features = 0;
  bool final_norm = true;  ///< one in front of the head (OPT with norms behind the sums: none)
  bool head_bias = false;  ///< one a word (GPT-J)
  double head_scale = 1;   ///< factor of the logits (PaLM)
  double soft_cap = 0;     ///< nn::LmHeadOptions::soft_cap (Gemma 2)
};

/// The sizes that the families of GPT have where nobody says otherwise: as many heads of keys as heads, which have the
/// hidden features together, and 4 times as many features inside the feed-forward layer.
ModelShape gpt_layout(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t positions = 2048);

/// The model of `shape` in that variant. Its parameters are called, beside those of its blocks, embedding, positions,
/// embedding_projection, embedding_norm, norm, head.projection, and head where the shape is not `tied` or has a bias.
Model make_decoder(const ModelShape& shape, const DecoderVariant& variant, nn::Layers& layers);

}  // namespace colossal::models
