// Multi-token layers (DeepSeek-V3, arXiv:2412.19437, section 2.2). They follow the last block of a model and learn to
// predict tokens after the next one.
//
//   const auto extra = std::make_shared<const MultiTokenLayers>(s, {.layers = 1, .block = block}, tokens, head, layers,
//                                                               model.mixtures);
//   model.tokens_ahead = 1;
//   model.norm = [=](const at::Tensor& x, const nn::ForwardContext& step) {
//     return extra->with_loss(norm->forward(x), step);
//   };
//
// Layer k = 1, 2, ... of position i reads h, which is the end of the model for k = 1 and the output of layer k - 1
// otherwise, and the embedding of token i + k:
//
//   block(eh_proj [enorm(embedding(token i + k)), hnorm(h)])
//
// Its norm and the head of the model turn the result into logits of token i + k + 1.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/transformer_block.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/reports.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The multi-token layers of a model.
struct MultiTokenOptions {
  int64_t layers = 0;     ///< 0 = none
  double loss = 0.3;      ///< factor of their loss beside the loss of the model
  BlockVariants block{};  ///< variants of their blocks, by the index that follows the blocks of the model
};

/// The layers, which share the embedding and the head of the model. Layer k = 0, 1, ... has the parameters
/// "head.multi_token.<k>." and then enorm, hnorm, eh_proj, norm, and those of its block (models/transformer_block.h).
///
/// Pipeline: they belong to the last stage, which therefore holds the embedding, too (MultiTokenSizes).
class MultiTokenLayers {
 public:
  /// Declares the loss term `multi_token_loss`. Appends the mixtures of the blocks to `mixtures`.
  MultiTokenLayers(const ModelShape& shape, const MultiTokenOptions& options, std::shared_ptr<nn::Embedding> embedding,
                   std::shared_ptr<nn::LossHead> head, nn::Layers& layers, Mixtures& mixtures);

  /// Returns the number of layers.
  int64_t count() const { return static_cast<int64_t>(layers_.size()); }
  /// Returns the output of layer `layer` = 0, 1, ... for this rank's part of `hidden` [B, S, H], which is the end of
  /// the model for layer 0 and the output of a layer otherwise. The batch of `step` has the tokens as `ids` [B, S]: for
  /// layer k of position i, token i + k + 1. A cache in `step` gets the keys and values of that layer, whose attention
  /// is numbered after the attention layers of the model. All ranks of the last stage must call it, and no other ones.
  /// Communication and cost: those of the embedding and of one block.
  at::Tensor forward(int64_t layer, const at::Tensor& hidden, const nn::ForwardContext& step) const;
  /// Returns the logits [B, S, V] of an output of that layer: those of token i + layer + 2 at position i.
  at::Tensor logits(int64_t layer, const at::Tensor& output, const nn::ForwardContext& step) const;

  /// Returns `hidden`, this rank's part of the end of the model. In training the loss of the layers is attached to it:
  /// the sum of the losses of all tokens, divided by the number of tokens of the micro-batch (labels that are ignored
  /// included), and the mean over the layers. A batch without `labels` has no such loss.
  /// Cost: without training none. In training one block and one head for each layer.
  at::Tensor with_loss(const at::Tensor& hidden, const nn::ForwardContext& step) const;

 private:
  struct Layer;
  at::Tensor loss_of(const at::Tensor& hidden, const nn::ForwardContext& step) const;

  std::vector<std::shared_ptr<const Layer>> layers_;
  std::shared_ptr<nn::Embedding> embedding_;
  std::shared_ptr<nn::LossHead> head_;
  double parts_ = 1;  // ranks that split the rows and tokens of a replica
  nn::Report term_;
};

/// Returns `batch` with further fields for each k in [1, count], both [B, S]: `ids.<k>` with the token k places after
/// each token, and `labels.<k>` with the label there. The label is ignored if that place is beyond the row, or in
/// another document, which starts where `positions` do not go on. The batch must have the tokens of whole rows, so it
/// is called before rows are cut. A batch without labels for each token, or with these fields, is returned as it is.
tensor::Batch with_tokens_ahead(const tensor::Batch& batch, int64_t count);

}  // namespace colossal::models
