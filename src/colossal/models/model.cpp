#include "colossal/models/model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cstddef>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/expert_choice.h"
#include "colossal/nn/input_store.h"

namespace colossal::models {
namespace {

size_t state_count(const Model& model) { return std::max<size_t>(1, model.states.size()); }

/// Returns the index of the norm, which is one past the last block.
int64_t end_of(const Model& model) { return static_cast<int64_t>(model.blocks.size()); }

const Block& part_of(const Model& model, int64_t index) {
  return index == end_of(model) ? model.norm : model.blocks[index];
}

std::string name_of(const Model& model, int64_t index) {
  return index == end_of(model) ? "the norm" : concat("block ", index);
}

std::string state_names(const Model& model) {
  std::string names;
  for (const State& state : model.states) names += concat(names.empty() ? "`" : ", `", state.name, "`");
  return names;
}

[[noreturn]] void refuse_unwritten(const Model& model, int state, const std::string& part) {
  throw Error("model", concat(part, " must write state `", model.states.empty() ? "hidden" : model.states[state].name,
                              "`: got an undefined tensor"));
}

/// Returns, for each block and finally the norm, which states it or a later part reads before they are written again.
std::vector<std::vector<bool>> lives_of(const Model& model) {
  std::vector<std::vector<bool>> lives(model.blocks.size() + 1);
  std::vector<bool> live(state_count(model));
  for (int64_t i = end_of(model); i >= 0; --i) {
    const Block& block = part_of(model, i);
    for (const int state : block.writes) live[state] = false;
    for (const int state : block.reads) live[state] = true;
    lives[i] = live;
  }
  return lives;
}

void drop_dead(States& states, const std::vector<bool>& live) {
  for (size_t i = 0; i < states.size(); ++i)
    if (!live[i]) states[i] = at::Tensor();
}

std::vector<at::Tensor> inputs_of(const Block& block, const States& states) {
  std::vector<at::Tensor> inputs;
  for (const int state : block.reads) inputs.push_back(states[state]);
  return inputs;
}

/// Returns the states that a block (or the norm) writes, given the states that it reads, both in the order of its
/// lists. It sees no other states, so it computes the same when backward runs it again.
std::vector<at::Tensor> written_by(const Model& model, int64_t index, const std::vector<at::Tensor>& inputs,
                                   const nn::ForwardContext& step) {
  const Block& block = part_of(model, index);
  States states(state_count(model));
  for (size_t i = 0; i < inputs.size(); ++i) states[block.reads[i]] = inputs[i];
  block.run(states, step);
  std::vector<at::Tensor> written;
  for (const int state : block.writes) {
    if (!states[state].defined()) refuse_unwritten(model, state, name_of(model, index));
    written.push_back(states[state]);
  }
  return written;
}

void run_block(const Model& model, int64_t index, States& states, const nn::ForwardContext& step) {
  const Block& block = model.blocks[index];
  const std::vector<at::Tensor> inputs = inputs_of(block, states);
  const bool is_recomputed = step.training && step.recompute == nn::Recompute::Block;
  // Backward runs the copy of this function in the recomputed block's node, so every call after the first is a
  // recomputation.
  auto again = [&model, index, step = step](const std::vector<at::Tensor>& read) mutable {
    if (!step.choices) step.choices = std::make_shared<nn::KeptChoices>();
    step.choices->begin_pass();
    std::vector<at::Tensor> written = written_by(model, index, read, step);
    step.is_recomputed = true;
    return written;
  };
  const std::vector<at::Tensor> written =
      is_recomputed ? nn::recomputed(again, inputs, step.inputs.get()) : written_by(model, index, inputs, step);
  for (size_t i = 0; i < written.size(); ++i) states[block.writes[i]] = written[i];
}

/// Detaches the states without a gradient, so that backward does not go through them, wherever a pipeline is cut.
void cut_gradients(const Model& model, const std::vector<int>& written, States& states) {
  if (model.states.empty()) return;
  for (const int state : written)
    if (!model.states[state].has_gradient && states[state].defined()) states[state] = states[state].detach();
}

}  // namespace

State hidden_state(int64_t hidden, int64_t positions) {
  using tensor::Dim;
  return {.name = "hidden",
          .dims = {Dim::Row, Dim::Token, Dim::Feature},
          .sizes = [=](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
            const tensor::Batch& batch = *step.batch;
            return {batch.rows(), batch.has_tokens() ? batch.tokens() : std::max<int64_t>(1, positions), hidden};
          }};
}

Block::Block(OfOne one) {
  if (!one) return;
  reads = writes = {0};
  run = [one = std::move(one)](States& states, const nn::ForwardContext& step) { states[0] = one(states[0], step); };
}

at::Tensor Block::operator()(const at::Tensor& hidden, const nn::ForwardContext& step) const {
  const std::vector<int> first{0};
  require(reads == first && writes == first, "model",
          "a block that is called with a tensor must read and write state 0 alone: got one of ", reads.size(), " and ",
          writes.size(), " states; call run_stage()");
  States states{hidden};
  run(states, step);
  return states[0];
}

Embed::Embed(OfOne one) {
  if (!one) return;
  writes = {0};
  run = [one = std::move(one)](States& states, const tensor::Batch& batch, const nn::ForwardContext& step) {
    states[0] = one(batch, step);
  };
}

at::Tensor Embed::operator()(const tensor::Batch& batch, const nn::ForwardContext& step) const {
  require(writes == std::vector<int>{0}, "model",
          "an embedding that is called for a tensor must write state 0 alone: got one of ", writes.size(),
          " states; call run_stage()");
  States states(1);
  run(states, batch, step);
  return states[0];
}

States run_stage(const Model& model, const Stage& stage, States states, const nn::ForwardContext& step) {
  require(!stage.embeds || step.batch, "model",
          "the first stage must have the micro-batch in its step: got none; nn::step_of() makes it");
  states.resize(state_count(model));
  if (stage.embeds) {
    model.embed.run(states, *step.batch, step);
    for (const int state : model.embed.writes)
      if (!states[state].defined()) refuse_unwritten(model, state, "the embedding");
    cut_gradients(model, model.embed.writes, states);
  }
  const bool has_several = states.size() > 1;
  const std::vector<std::vector<bool>> lives = has_several ? lives_of(model) : std::vector<std::vector<bool>>();
  if (has_several && stage.embeds) drop_dead(states, lives[0]);
  for (int64_t i = stage.first; i < stage.last; ++i) {
    run_block(model, i, states, step);
    cut_gradients(model, model.blocks[i].writes, states);
    if (has_several) drop_dead(states, lives[i + 1]);
  }
  if (stage.ends) {
    const std::vector<at::Tensor> ends = written_by(model, end_of(model), inputs_of(model.norm, states), step);
    for (size_t i = 0; i < ends.size(); ++i) states[model.norm.writes[i]] = ends[i];
  }
  return states;
}

std::vector<StateTransfer> state_transfers(const Model& model, const std::vector<int64_t>& cuts) {
  const auto last = static_cast<int>(cuts.size()) - 2;
  const std::vector<std::vector<bool>> lives = lives_of(model);
  const auto names = [](const std::vector<int>& list, int state) {
    return std::find(list.begin(), list.end(), state) != list.end();
  };
  std::vector<StateTransfer> transfers;
  for (int state = 0; state < static_cast<int>(state_count(model)); ++state) {
    int holder = names(model.embed.writes, state) ? 0 : -1;
    for (int stage = 0; stage <= last; ++stage) {
      bool reads = false, writes = false;
      for (int64_t i = cuts[stage]; i < cuts[stage + 1]; ++i) {
        reads = reads || names(model.blocks[i].reads, state);
        writes = writes || names(model.blocks[i].writes, state);
      }
      reads = reads || (stage == last && names(model.norm.reads, state));
      // If the state is live here, the stage reads the incoming value before anything is written.
      const bool takes = reads && stage > 0 && lives[cuts[stage]][state];
      if (takes && holder >= 0) transfers.push_back({state, holder, stage});
      if (takes || writes) holder = stage;
    }
  }
  return transfers;
}

void check_states(const Model& model) {
  for (size_t i = 0; i < model.states.size(); ++i) {
    const State& state = model.states[i];
    require(!state.name.empty() && state.sizes, "model",
            "a state must have a name and a function of its sizes: got state ", i, " `", state.name, "` without");
    require(std::none_of(model.states.begin(), model.states.begin() + static_cast<std::ptrdiff_t>(i),
                         [&](const State& other) { return other.name == state.name; }),
            "model", "the names of a model's states must differ: got `", state.name, "` twice; rename one of them");
    require(!state.dims.empty() && state.dims.front() == tensor::Dim::Row &&
                std::count(state.dims.begin(), state.dims.end(), tensor::Dim::Row) == 1,
            "model", "state `", state.name, "` must have rows in its first dimension and in no other one: got ",
            state.dims.size(), " dimensions; put the samples first");
    require(!state.has_gradient || !state.dtype || at::isFloatingType(*state.dtype), "model", "state `", state.name,
            "` must be of a floating type to have a gradient: got ", at::toString(*state.dtype),
            "; set has_gradient = false");
  }
  std::vector<bool> written(state_count(model));
  const auto check_known = [&](const std::vector<int>& list, const std::string& part) {
    for (const int state : list)
      require(state >= 0 && state < static_cast<int>(written.size()), "model", part,
              " must read and write states of the model: got state ", state, ", but there are ", state_names(model));
  };
  const auto write = [&](const std::vector<int>& list) {
    for (const int state : list) written[state] = true;
  };
  check_known(model.embed.writes, "the embedding");
  write(model.embed.writes);
  for (int64_t i = 0; i <= end_of(model); ++i) {
    const Block& block = part_of(model, i);
    check_known(block.reads, name_of(model, i));
    check_known(block.writes, name_of(model, i));
    for (const int state : block.reads)
      require(written[state], "model", name_of(model, i), " must read states that something before it writes: got `",
              model.states.at(state).name, "`, which neither the embedding nor a block before it writes");
    write(block.writes);
  }
}

void check_sizes(const Model& model, const States& states, const nn::ForwardContext& step, int64_t block) {
  for (size_t i = 0; i < model.states.size(); ++i) {
    if (!states.at(i).defined()) continue;
    const State& state = model.states[i];
    const std::vector<int64_t> sizes = state.sizes(step, block);
    const std::string part = block < 0 ? "the embedding" : name_of(model, block);
    require(states[i].sizes() == sizes && sizes.size() == state.dims.size(), "model", "after ", part, " state `",
            state.name, "` must have the sizes that the model says, ", at::IntArrayRef(sizes), ": got ",
            states[i].sizes(), "; correct State::sizes or the block");
    require(!state.dtype || states[i].scalar_type() == *state.dtype, "model", "after ", part, " state `", state.name,
            "` must have the dtype that the model says, ", at::toString(*state.dtype), ": got ",
            at::toString(states[i].scalar_type()), "; correct State::dtype or the block");
  }
}

void check_fields(const Model& model, const tensor::Batch& batch) {
  for (const std::string& name : model.fields) batch.field(name);
}

nn::LossHead& head_of(const Model& model) {
  if (!model.head)
    throw Error("model", concat(model.shape.architecture->name,
                                " has no head, which losses of labels, accuracy, logits and generation need; train it "
                                "with a loss of its own, or set Model::head"));
  return *model.head;
}

int64_t tokens_of(const Model& model, const tensor::Batch& batch) {
  return batch.has_tokens() ? batch.tokens() : std::max<int64_t>(1, model.shape.positions);
}

std::optional<int64_t> block_of(const std::string& parameter, int64_t layers) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!parameter.starts_with(kBlocks)) return {};
  int64_t block = -1;
  const char *begin = parameter.data() + kBlocks.size(), *end = parameter.data() + parameter.size();
  const auto [behind, error] = std::from_chars(begin, end, block);
  require(error == std::errc() && behind != end && *behind == '.' && block >= 0 && block < layers, "model",
          "a parameter of a block must be named `blocks.<i>.<name>` with i in [0, ", layers, "): got ", parameter,
          "; rename it, without `blocks.` if it belongs to no block");
  return block;
}

std::vector<int64_t> stages_using(const std::string& parameter, const ModelShape& shape,
                                  const std::vector<int64_t>& cuts) {
  const auto last = static_cast<int64_t>(cuts.size()) - 2;
  if (const std::optional<int64_t> block = block_of(parameter, shape.layers))
    return {std::upper_bound(cuts.begin(), cuts.end(), *block) - cuts.begin() - 1};
  if (parameter.starts_with("norm.") || parameter.starts_with("head.")) return {last};
  if (shape.architecture && shape.architecture->shared)
    if (const auto blocks = shape.architecture->shared(shape, parameter)) {
      std::vector<int64_t> stages;
      for (int64_t stage = 0; stage <= last; ++stage)
        if (cuts[stage] < blocks->second && cuts[stage + 1] > blocks->first) stages.push_back(stage);
      return stages;
    }
  if (parameter.starts_with("embedding.") && (shape.tied || shape.multi_token_layers > 0) && last > 0) return {0, last};
  return {0};
}

}  // namespace colossal::models
