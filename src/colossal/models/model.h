// A model as every runtime sees it: an embedding, a list of blocks, a norm, most often a head. Pipelines cut it;
// recomputation and prefetch use the borders of its blocks; decoding passes a cache through the same blocks.
//
//   Model make(const ModelShape& s, nn::Layers& layers) {                  // by hand; a language model: decoder.h
//     Model model;
//     model.fields = {"ids", "positions"};
//     std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
//     model.embed = [=](const tensor::Batch& b, const nn::Step& step) { return tokens->forward(b.at("ids"), step); };
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
#include <string>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/models/shape.h"
#include "colossal/nn/layers.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The hidden states of a model. The first one is `hidden` [B, S, H].
using States = std::vector<at::Tensor>;

/// From the fields of a micro-batch to hidden [B, S, H]. It reads those that the family names: token `ids` [B, S], or
/// `images` [B, C, side, side].
using Embed = std::function<at::Tensor(const tensor::Batch& micro_batch, const nn::Step&)>;
/// hidden [B, S, H] -> hidden [B, S, H]. A block may read fields of step.batch, too (nn::Layers::field_part).
using Block = std::function<at::Tensor(const at::Tensor&, const nn::Step&)>;
/// Called once per training step after the update, on all ranks with the same values. May add rows to the metrics of
/// the step, the same on all ranks. Not called if the step throws.
using EndStep = std::function<void(const nn::Reported& reported, std::vector<Metric>& rows)>;

struct Model {
  ModelShape shape;
  /// Names of fields that the embedding or blocks read. A pass refuses a batch without one of them before any
  /// communication. The head and its labels are the caller's, so labels are not among them
  std::vector<std::string> fields{};
  Embed embed;
  std::vector<Block> blocks;
  Block norm;  ///< of a model of images also the choice of the class token: [B, S, H] -> [B, 1, H]
  /// Null if the objective computes its loss from the end of the model (nn::Outputs). A model that generates text has a
  /// head. Users of a head call head_of()
  std::shared_ptr<nn::LossHead> head;
  int64_t batch_parts = 1;  ///< nn::Layers::batch_parts() of the layout: every batch must divide by it
  EndStep end_step{};       ///< null: the model does nothing at the end of a step
  nn::Reports reports{};    ///< of the model's layers (nn::Layers::reports()); make_model() sets it
};

/// A run of blocks, with what stands before the first and behind the last of the model.
struct Stage {
  int64_t first = 0, last = 0;  ///< blocks [first, last)
  bool embeds = true;           ///< starts from the micro-batch of the step instead of a hidden state
  bool ends = true;             ///< applies the final norm
};

/// A stage of the forward pass: from step.batch, or from the hidden state that the stage before returned (undefined if
/// stage.embeds). step.cache is the caller's to advance.
/// Errors ("data"): a field that the model reads and the batch does not have.
at::Tensor run_stage(const Model& model, const Stage& stage, const at::Tensor& hidden, const nn::Step& step);

/// The block that the parameter of that name is of; none: of no block.
/// Errors ("model"): "blocks." without the number of one of `layers` blocks and a name behind.
std::optional<int64_t> block_of(const std::string& parameter, int64_t layers);

/// The stages of a chain that use the parameter of that name, where stage k has blocks [cuts[k], cuts[k+1]): of
/// "blocks.<i>...." the one with that block; of "norm...." and "head...." the last; of others the first, and of a tied
/// embedding both; of one that blocks share (Architecture::shared) all that have one of these blocks.
std::vector<int64_t> stages_using(const std::string& parameter, const ModelShape& shape,
                                  const std::vector<int64_t>& cuts);

/// Errors ("data"): a field of model.fields that the batch does not have. All ranks must call it before they
/// communicate, because in a pipeline one stage alone reads the field.
void check_fields(const Model& model, const tensor::Batch& batch);

/// Returns the head. Errors ("model"): the model has none. All ranks must call it before they communicate, because in a
/// pipeline only the last stage uses the head.
nn::LossHead& head_of(const Model& model);

/// Tokens of a sample in the hidden states that blocks hand on: those of the batch, or the model's positions (at least
/// one) if the batch has none, as images.
int64_t tokens_of(const Model& model, const tensor::Batch& batch);

}  // namespace colossal::models
