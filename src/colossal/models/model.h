// A model as every runtime uses it: an embedding, a list of blocks, a norm and usually a head. Pipelines cut it between
// blocks. Recomputation and prefetch work block by block. Decoding passes a cache through the same blocks.
//
//   Model make(const ModelShape& s, nn::Layers& layers) {                  // by hand; a language model: decoder.h
//     Model model;
//     model.fields = {"ids", "positions"};
//     std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, 0.02);
//     model.embed = [=](const tensor::Batch& b, const nn::ForwardContext& step) {
//       return tokens->forward(b.at("ids"), step);
//     };
//     add_transformer_blocks(model, s, {.activation = ops::gelu}, layers);     // or blocks of one's own
//     std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
//     model.norm = [=](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
//     model.head = layers.lm_head("head", s.hidden, s.vocabulary, {.tied = s.tied ? tokens.get() : nullptr});
//     return model;
//   }
//
// Blocks pass on one hidden state, or several of different sizes (State). In this example a block reads two and changes
// one:
//
//   const State pair{.name = "pair",
//                    .dims = {Dim::Row, Dim::Other, Dim::Other, Dim::Feature},
//                    .sizes = [](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
//                      return {step.batch->rows(), 8, 8, 32};
//                    }};
//   model.states = {hidden_state(s.hidden, s.positions), pair};
//   model.blocks.push_back({{0, 1}, {1}, [block](models::States& states, const nn::ForwardContext& step) {
//                             states[1] = states[1] + block->forward(states[0], step);
//                           }});
//
// The names of parameters show which part of the model uses them, and thereby which pipeline stage holds them:
// "blocks.<i>." = block i, "norm." and "head." = the end, all others = the beginning; "embedding." = both ends if it is
// tied or if there are multi-token layers.
// make_model() refuses names that do not show this.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/models/shape.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/reports.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

class MultiTokenLayers;  // models/multi_token.h
struct FoldingHeads;     // models/folding/folding_model.h

/// This rank's part of the hidden states of a micro-batch, indexed like Model::states. A state is undefined before it
/// is first written and after the last block that reads it.
using States = std::vector<at::Tensor>;

/// A hidden state, which blocks pass on.
struct State {
  std::string name;  ///< "hidden", "pair", "skip.3"
  /// How the layout splits it: one kind per dimension, as in tensor::Field. The first dimension, and only that one, is
  /// Row
  std::vector<tensor::Dim> dims;
  /// Returns its logical sizes after that block (-1 = the embedding). `step` has the whole micro-batch. Every rank of a
  /// pipeline calls it, so sizes may depend on the sizes of fields, but not on their values
  std::function<std::vector<int64_t>(const nn::ForwardContext& step, int64_t block)> sizes;
  std::optional<at::ScalarType> dtype{};  ///< default: the dtype of the model's parameters
  bool has_gradient = true;               ///< false = backward does not go through it; must be false for integers
};

/// Returns the state `hidden` [B, S, hidden], which a model has if it names none. S is the number of tokens of the
/// batch, or `positions` (at least one) if the batch has none, as with images.
State hidden_state(int64_t hidden, int64_t positions);

/// A function of one hidden state, or of several. It may also read fields of step.batch (nn::Layers::field_part).
struct Block {
  using OfOne = std::function<at::Tensor(const at::Tensor& hidden, const nn::ForwardContext&)>;
  using OfStates = std::function<void(States& states, const nn::ForwardContext&)>;

  Block(std::nullptr_t = nullptr) {}
  /// Makes a block that reads and writes only state 0: hidden [B, S, H] -> hidden [B, S, H].
  Block(OfOne run);
  template <class Run>
    requires(!std::is_same_v<Run, Block>) &&
            std::is_invocable_r_v<at::Tensor, Run&, const at::Tensor&, const nn::ForwardContext&>
  Block(Run run) : Block(OfOne(std::move(run))) {}
  /// Makes a block that reads and writes the states with these indices. `run` gets the states that it reads; the others
  /// are undefined. It must define every state that it writes; other assignments are dropped. A state that it changes
  /// must be in both lists. A state that it writes without reading is new: values that earlier blocks wrote to it end
  /// there.
  Block(std::vector<int> reads, std::vector<int> writes, OfStates run)
      : reads(std::move(reads)), writes(std::move(writes)), run(std::move(run)) {}

  explicit operator bool() const { return bool(run); }
  /// Calls a block of state 0. Errors ("model"): a block that uses other states.
  at::Tensor operator()(const at::Tensor& hidden, const nn::ForwardContext& step) const;

  std::vector<int> reads{}, writes{};
  OfStates run{};
};

/// The first part of a model: computes the hidden states from the fields of a micro-batch that the family names, such
/// as token `ids` [B, S] or `images` [B, C, side, side].
struct Embed {
  using OfOne = std::function<at::Tensor(const tensor::Batch& micro_batch, const nn::ForwardContext&)>;
  using OfStates = std::function<void(States& states, const tensor::Batch& micro_batch, const nn::ForwardContext&)>;

  Embed(std::nullptr_t = nullptr) {}
  /// Makes an embedding that writes only state 0: hidden [B, S, H].
  Embed(OfOne run);
  template <class Run>
    requires(!std::is_same_v<Run, Embed>) &&
            std::is_invocable_r_v<at::Tensor, Run&, const tensor::Batch&, const nn::ForwardContext&>
  Embed(Run run) : Embed(OfOne(std::move(run))) {}
  /// Makes an embedding that writes the states with these indices.
  Embed(std::vector<int> writes, OfStates run) : writes(std::move(writes)), run(std::move(run)) {}

  explicit operator bool() const { return bool(run); }
  /// Calls an embedding of state 0. Errors ("model"): an embedding that writes other states.
  at::Tensor operator()(const tensor::Batch& micro_batch, const nn::ForwardContext& step) const;

  std::vector<int> writes{};
  OfStates run{};
};

/// Function that runs once per training step after the update, on all ranks with the same values. It may add rows to
/// the metrics of the step, the same on all ranks. It is not called if the step throws.
using EndStep = std::function<void(const nn::Reported& reported, std::vector<Metric>& rows)>;

/// Mixtures of experts, in the order in which a pass runs them.
using Mixtures = std::vector<std::shared_ptr<nn::Experts>>;

/// A model with its layers. make_model() builds it.
struct Model {
  ModelShape shape;
  /// Names of the fields that the embedding or blocks read. A pass refuses a batch without one of them before any
  /// communication. Labels are not listed, because the caller uses the head and its labels
  std::vector<std::string> fields{};
  std::vector<State> states{};  ///< empty = only hidden_state()
  Embed embed;
  std::vector<Block> blocks;
  /// The function after the last block. Head and losses get the states that it reads or writes; the head gets state 0.
  /// In a model of images it also selects the class token: [B, S, H] -> [B, 1, H]
  Block norm;
  /// Null if the objective computes its loss from the end of the model (nn::Outputs). Callers that use a head call
  /// head_of()
  std::shared_ptr<nn::LossHead> head;
  /// Number by which the rows of every batch must be divisible (nn::Layers::batch_parts() of the layout)
  int64_t batch_parts = 1;
  EndStep end_step{};   ///< null = no action at the end of a step
  Mixtures mixtures{};  ///< make_model() lets end_step end their step and add their rows, after its own action
  /// Number of tokens after a token whose ids and labels the norm reads in training (models/multi_token.h)
  int64_t tokens_ahead = 0;
  /// Multi-token layers, which generation may draft tokens with; null = none
  std::shared_ptr<const MultiTokenLayers> multi_token{};
  nn::Reports reports{};  ///< reports of the model's layers (nn::Layers::reports()); set by make_model()
  /// Number of layers that read the tokens before each token (nn::Neighbours); set by make_model(). A step that
  /// generates then needs nn::RememberedTokens
  int64_t neighbour_layers = 0;
  /// The head of values, one output of state 0 for each token, in addition to `head`; null without
  /// ModelShape::has_values(). Losses call it with hidden states of fp32 or fp64
  std::shared_ptr<nn::Outputs> values{};
  /// The heads of a model that folds proteins; null = another kind of model
  std::shared_ptr<const FoldingHeads> folding{};
};

/// A range of blocks, with the embedding before it and the norm after it where they belong to the range.
struct Stage {
  int64_t first = 0, last = 0;  ///< blocks [first, last)
  bool embeds = true;           ///< true = starts from the micro-batch of the step instead of a hidden state
  bool ends = true;             ///< true = applies the final norm
};

/// Runs one stage of the forward pass, starting from step.batch or from the `states` that earlier stages left (empty if
/// stage.embeds). Returns the states that are live after it; with stage.ends, the states that the norm reads or writes.
/// The caller advances the cache of the step (nn::Decoding).
/// Errors ("data"): a field that the model reads and the batch lacks.
/// Errors ("model"): a state that a block must write and leaves undefined; stage.embeds without step.batch.
States run_stage(const Model& model, const Stage& stage, States states, const nn::ForwardContext& step);

/// The transfer of a state from stage `from` to the next stage that reads it, `to`, which may be several stages later.
struct StateTransfer {
  int state, from, to;
  bool operator==(const StateTransfer&) const = default;
};

/// Returns all transfers between the stages of a chain, by state and stage. Stage k has blocks [cuts[k], cuts[k+1]).
/// They follow from what the blocks read and write. A stage that writes a state before reading it needs no transfer of
/// it.
std::vector<StateTransfer> state_transfers(const Model& model, const std::vector<int64_t>& cuts);

/// Checks the states of a model; make_model() calls it.
/// Errors ("model"): states without sizes; dimensions of which not exactly the first is Row; a name that is taken;
///                   integers with a gradient; a block that reads or writes a state that the model does not have, or
///                   reads one that no earlier part writes.
void check_states(const Model& model);

/// Checks the defined ones of `states`, which must be whole, not sharded.
/// Errors ("model"): other sizes or another dtype than Model::states gives for the states after that block (-1 = the
///                   embedding).
void check_sizes(const Model& model, const States& states, const nn::ForwardContext& step, int64_t block);

/// Returns the block to which the parameter of that name belongs; none = no block.
/// Errors ("model"): "blocks." without the number of one of `layers` blocks and a name after it.
std::optional<int64_t> block_of(const std::string& parameter, int64_t layers);

/// Returns the stages of a chain that use the parameter of that name. Stage k has blocks [cuts[k], cuts[k+1]).
/// "blocks.<i>...." is used by the stage with that block, "norm...." and "head...." by the last, other names by the
/// first. An embedding that is tied, or that multi-token layers read, is used by the first and the last. A parameter
/// that blocks share (Architecture::shared) is used by all stages that have one of these blocks.
std::vector<int64_t> stages_using(const std::string& parameter, const ModelShape& shape,
                                  const std::vector<int64_t>& cuts);

/// Checks that the batch has the fields of the model. All ranks must call it before they communicate, because in a
/// pipeline only one stage reads the field.
/// Errors ("data"): a field of model.fields that the batch lacks.
void check_fields(const Model& model, const tensor::Batch& batch);

/// Returns the head. Errors ("model"): the model has none. All ranks must call it before they communicate, because in a
/// pipeline only the last stage uses the head.
nn::LossHead& head_of(const Model& model);

/// Returns the number of tokens of a sample in the hidden states between blocks: the tokens of the batch of `step`. If
/// it has none, as with pictures, it is the size of the dimension tensor::Dim::Token of the first state that the
/// embedding writes, or of a model whose states have none its positions, at least one.
int64_t tokens_of(const Model& model, const nn::ForwardContext& step);

}  // namespace colossal::models
