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
// Blocks hand on one hidden state, or several of different sizes (State). Here a block reads two and changes one:
//
//   const State pair{.name = "pair",
//                    .dims = {Dim::Row, Dim::Other, Dim::Other, Dim::Feature},
//                    .sizes = [](const nn::Step& step, int64_t) -> std::vector<int64_t> {
//                      return {step.batch->rows(), 8, 8, 32};
//                    }};
//   model.states = {hidden_state(s.hidden, s.positions), pair};
//   model.blocks.push_back({{0, 1}, {1}, [block](models::States& states, const nn::Step& step) {
//                             states[1] = states[1] + block->forward(states[0], step);
//                           }});
//
// The names of parameters say which part of the model uses them, and so in a pipeline where they are: "blocks.<i>." the
// block i, "norm." and "head." the end, all others the beginning; a tied "embedding." both ends. make_model() refuses
// names that say nothing of this.
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
#include "colossal/nn/layers.h"
#include "colossal/tensor/batch.h"

namespace colossal::models {

/// The hidden states of a micro-batch by index in Model::states, this rank's part of each. Undefined outside its life:
/// before something writes it, and after the last block that reads it.
using States = std::vector<at::Tensor>;

/// A hidden state: what blocks hand on.
struct State {
  std::string name;  ///< "hidden", "pair", "skip.3"
  /// How the layout divides it, one kind per dimension as in tensor::Field; the first is Row, and no other one
  std::vector<tensor::Dim> dims;
  /// Returns its whole sizes after that block (-1: the embedding). `step` has the micro-batch, uncut. Every rank of a
  /// pipeline computes them, so they may follow from the sizes of fields, and from no value of them
  std::function<std::vector<int64_t>(const nn::Step& step, int64_t block)> sizes;
  std::optional<at::ScalarType> dtype{};  ///< default: that of the model's parameters
  bool has_gradient = true;               ///< false: backward does not go through it; of integers it must be false
};

/// The state `hidden` [B, S, hidden] of a model that names none. S: tokens of the batch, or `positions` (at least one)
/// if it has none, as images.
State hidden_state(int64_t hidden, int64_t positions);

/// A function of a single hidden state, or of several. It may read fields of step.batch too (nn::Layers::field_part).
struct Block {
  using OfOne = std::function<at::Tensor(const at::Tensor& hidden, const nn::Step&)>;
  using OfStates = std::function<void(States& states, const nn::Step&)>;

  Block(std::nullptr_t = nullptr) {}
  /// Reads and writes state 0 alone: hidden [B, S, H] -> hidden [B, S, H].
  Block(OfOne run);
  template <class Run>
    requires(!std::is_same_v<Run, Block>) && std::is_invocable_r_v<at::Tensor, Run&, const at::Tensor&, const nn::Step&>
  Block(Run run) : Block(OfOne(std::move(run))) {}
  /// Reads and writes the states with these indices. `run` is given those that it reads, the others undefined. It must
  /// define all that it writes; what else it assigns is dropped. A state that it changes is in both lists. One that it
  /// writes and does not read begins a new life: what blocks before wrote ends there.
  Block(std::vector<int> reads, std::vector<int> writes, OfStates run)
      : reads(std::move(reads)), writes(std::move(writes)), run(std::move(run)) {}

  explicit operator bool() const { return bool(run); }
  /// Calls a block of state 0 alone. Errors ("model"): a block of others.
  at::Tensor operator()(const at::Tensor& hidden, const nn::Step& step) const;

  std::vector<int> reads{}, writes{};
  OfStates run{};
};

/// From the fields of a micro-batch, which the family names, to hidden states: token `ids` [B, S], or `images`
/// [B, C, side, side].
struct Embed {
  using OfOne = std::function<at::Tensor(const tensor::Batch& micro_batch, const nn::Step&)>;
  using OfStates = std::function<void(States& states, const tensor::Batch& micro_batch, const nn::Step&)>;

  Embed(std::nullptr_t = nullptr) {}
  /// Writes state 0 alone: hidden [B, S, H].
  Embed(OfOne run);
  template <class Run>
    requires(!std::is_same_v<Run, Embed>) &&
            std::is_invocable_r_v<at::Tensor, Run&, const tensor::Batch&, const nn::Step&>
  Embed(Run run) : Embed(OfOne(std::move(run))) {}
  /// Writes the states with these indices.
  Embed(std::vector<int> writes, OfStates run) : writes(std::move(writes)), run(std::move(run)) {}

  explicit operator bool() const { return bool(run); }
  /// Calls an embedding of state 0 alone. Errors ("model"): one of others.
  at::Tensor operator()(const tensor::Batch& micro_batch, const nn::Step& step) const;

  std::vector<int> writes{};
  OfStates run{};
};

/// Called once per training step after the update, on all ranks with the same values. May add rows to the metrics of
/// the step, the same on all ranks. Not called if the step throws.
using EndStep = std::function<void(const nn::Reported& reported, std::vector<Metric>& rows)>;

struct Model {
  ModelShape shape;
  /// Names of fields that the embedding or blocks read. A pass refuses a batch without one of them before any
  /// communication. The head and its labels are the caller's, so labels are not among them
  std::vector<std::string> fields{};
  std::vector<State> states{};  ///< empty: hidden_state() alone
  Embed embed;
  std::vector<Block> blocks;
  /// What stands behind the last block. Head and losses are given the states that it reads or writes; the head takes
  /// state 0. Of a model of images it also chooses the class token: [B, S, H] -> [B, 1, H]
  Block norm;
  /// Null if the objective computes its loss from the end of the model (nn::Outputs). Users of a head call head_of()
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

/// A stage of the forward pass: from step.batch, or from the states that the stages before have left (empty if
/// stage.embeds). Returns the states that live behind it; with stage.ends those that the norm reads or writes.
/// step.cache is the caller's to advance.
/// Errors: "data", a field that the model reads and the batch does not have; "model", a state that a block is to write
///         and leaves undefined.
States run_stage(const Model& model, const Stage& stage, States states, const nn::Step& step);

/// A state that stage `from` of a chain leaves and stage `to`, which is not always the next one, is the next to read.
struct StateTransfer {
  int state, from, to;
  bool operator==(const StateTransfer&) const = default;
};

/// All transfers between the stages of a chain, where stage k has blocks [cuts[k], cuts[k+1]), by state and stage. They
/// follow from what the blocks read and write. Where a stage writes a state without reading it before, none is.
std::vector<StateTransfer> state_transfers(const Model& model, const std::vector<int64_t>& cuts);

/// Errors ("model"): states without sizes, with dimensions of which not the first one alone is Row, with a name that is
///                   taken, or of integers with a gradient; a block that reads or writes a state that the model does
///                   not have, or reads one that nothing before it writes. make_model() calls it.
void check_states(const Model& model);

/// Errors ("model"): `states`, which have not been divided among ranks, have other sizes or another dtype than
///                   Model::states says for those behind that block (-1: the embedding).
void check_sizes(const Model& model, const States& states, const nn::Step& step, int64_t block);

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
