// Layers of ESM-2 (Lin et al. 2023, doi:10.1126/science.ade2574), a language model of proteins that reads the letters
// of a chain from both sides. The family esm2 is made of them, and so is the language model within ESMFold.
//
//   const models::Esm2Embedding embedding("embedding", 33, 2560, {.mask_id = 32}, layers);          // any layout
//   models::add_transformer_blocks(model, shape, models::esm2_block(shape, 10000), layers);
//
// Within a model whose ranks all have whole chains, however the layout splits other states:
//
//   const models::Esm2WholeBlock block("blocks.0", {.hidden = 2560, .heads = 40, .ffn = 10240}, layers);
//   const nn::ForwardContext language = models::esm2_step(mask, step);   // mask [B, T], 0 = padding
//   x = block.forward(embedding.forward(ids, language), language);       // ids [B, T] with <cls>, <eos> and pads
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "colossal/models/shape.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/token_runs.h"

namespace colossal::models {

/// How the embedding of ESM-2 treats masked tokens.
struct Esm2Masking {
  bool token_dropout = true;  ///< see Esm2Embedding; false = a masked token has the vector of its id
  int64_t mask_id = 0;        ///< id of the mask token
};

/// The embedding of tokens, without positions. With Esm2Masking::token_dropout the vectors of mask tokens are zeros,
/// and those of other tokens are multiplied by 0.88 / (1 - share of masked tokens in their sequence), because 12 % of
/// the tokens were masked when the model was trained. Without mask tokens the factor is 0.88. A sequence is a document
/// of the step, one of nn::Sequences, or a row. Documents must be runs of a row.
class Esm2Embedding {
 public:
  /// Makes the parameter `name`.weight [vocabulary, hidden].
  Esm2Embedding(const std::string& name, int64_t vocabulary, int64_t hidden, const Esm2Masking& masking,
                nn::Layers& layers);
  /// Returns the vectors of this rank's tokens: ids int64 [B, S] of the batch -> [B_local, S_local, H_local].
  /// Communication: that of an embedding, and, if ranks split the tokens, one all_reduce of a number for each row, or
  /// with documents for each token of the batch.
  at::Tensor forward(const at::Tensor& ids, const nn::ForwardContext& step) const;
  /// Returns the table, which a tied head shares.
  nn::Embedding& table() const { return *table_; }

 private:
  at::Tensor factors(const at::Tensor& ids, const nn::ForwardContext& step, at::ScalarType dtype) const;

  Esm2Masking masking_;
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<const nn::TokenRuns> runs_;
};

/// Returns the variant of a block of ESM-2 (models/transformer_block.h): pre-norm branches with biases, exact GELU,
/// attention to both sides, and rotary positions with the base `theta`.
BlockVariant esm2_block(const ModelShape& shape, double theta);

/// Sizes of a block.
struct Esm2BlockSizes {
  int64_t hidden = 0, heads = 0, ffn = 0;  ///< `heads` divides `hidden` into even sizes
  double norm_epsilon = 1e-5;
  double theta = 10000;  ///< base of the rotary positions
};

/// A block of ESM-2 for ranks that all have whole rows of tokens and features, in every layout. Its parameters have the
/// names and shapes that make_transformer_block() gives to the block of esm2_block(). It has no dropout.
class Esm2WholeBlock {
 public:
  /// Errors ("model"): heads that do not divide the hidden features into even sizes.
  Esm2WholeBlock(const std::string& name, const Esm2BlockSizes& sizes, nn::Layers& layers);
  /// Returns the next hidden state: [B, T, hidden] -> [B, T, hidden]. `step` is one of esm2_step(), or has the
  /// positions int64 [B, T] of all its tokens and their documents. Communication: none.
  at::Tensor forward(const at::Tensor& x, const nn::ForwardContext& step) const;

 private:
  int64_t heads_, head_dim_;
  std::shared_ptr<const ops::RotaryTable> rotary_;
  std::unique_ptr<nn::Norm> norm_1_, norm_2_;
  std::unique_ptr<nn::Dense> qkv_, out_, up_, down_;
  std::unique_ptr<nn::Attention> attention_;
};

/// Returns `step` for rows of tokens of which only those with mask 1 are read: mask [B, T] of any dtype, 1 or 0, on the
/// host or a device. Positions count from 0, and padding is a document of its own, so that no token attends to it.
/// Padding must follow the tokens of a row.
nn::ForwardContext esm2_step(const at::Tensor& mask, const nn::ForwardContext& step);

}  // namespace colossal::models
