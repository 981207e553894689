// A model as every runtime sees it: an embedding, a list of blocks, a norm and a head. Pipelines cut the list;
// recomputation and prefetch use the borders of its blocks; decoding passes a cache through the same blocks.
//
//   Model make(const ModelShape& s, nn::Layers& layers) {                  // by hand; a language model: decoder.h
//     Model model;
//     std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
//     model.embed = [=](const at::Tensor& ids, const nn::Step& step) { return tokens->forward(ids, step); };
//     add_transformer_blocks(model, s, {.activation = ops::gelu}, layers);     // or blocks of one's own
//     std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
//     model.norm = [=](const at::Tensor& x, const nn::Step&) { return norm->forward(x); };
//     model.head = layers.lm_head("head", s.hidden, s.vocabulary, {.tied = s.tied ? tokens.get() : nullptr});
//     return model;
//   }
//
// The names of parameters say which part of the model uses them, and so in a pipeline where they are: "blocks.<i>." the
// block i, "norm." and "head." the end, all others the beginning; a tied "embedding." both ends. make_model() refuses
// names that say nothing of this.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/layers.h"

namespace colossal::models {

/// hidden [B, S, H] -> hidden [B, S, H] (the embedding: token ids [B, S] or images [B, C, side, side] -> hidden).
using Block = std::function<at::Tensor(const at::Tensor&, const nn::Step&)>;

struct Model {
  ModelShape shape;
  Block embed;
  std::vector<Block> blocks;
  Block norm;  ///< of a model of images also the choice of the class token: [B, S, H] -> [B, 1, H]
  std::shared_ptr<nn::LossHead> head;
  int64_t batch_parts = 1;  ///< nn::Layers::batch_parts() of the layout: every batch must divide by it
};

/// A run of blocks, with what stands before the first and behind the last of the model.
struct Stage {
  int64_t first = 0, last = 0;  ///< blocks [first, last)
  bool embeds = true;           ///< starts from inputs instead of a hidden state
  bool ends = true;             ///< applies the final norm
};

/// A stage of the forward pass: of inputs or the hidden state that the stage before returned. step.cache is the
/// caller's to advance.
at::Tensor run_stage(const Model& model, const Stage& stage, const at::Tensor& x, const nn::Step& step);

/// The block that the parameter of that name is of; none: of no block.
/// Errors ("model"): "blocks." without the number of one of `layers` blocks and a name behind.
std::optional<int64_t> block_of(const std::string& parameter, int64_t layers);

/// The stages of a chain that use the parameter of that name, where stage k has blocks [cuts[k], cuts[k+1]): of
/// "blocks.<i>...." the one with that block; of "norm...." and "head...." the last; of others the first, and of a tied
/// embedding both; of one that blocks share (Architecture::shared) all that have one of these blocks.
std::vector<int64_t> stages_using(const std::string& parameter, const ModelShape& shape,
                                  const std::vector<int64_t>& cuts);

/// Tokens of a sample in the hidden states that blocks hand on: S of token ids [B, S]; of images the model's positions.
int64_t tokens_of(const Model& model, const at::Tensor& inputs);

}  // namespace colossal::models
