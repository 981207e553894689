#include "colossal/models/model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/expert_choice.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/input_store.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/recompute.h"

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
  return join(model.states, ", ", [](const State& state) { return concat("`", state.name, "`"); });
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

/// The passes of a block within a segment. They share the choices of its mixtures, and only the first one reports.
struct BlockPasses {
  std::shared_ptr<nn::KeptChoices> choices = std::make_shared<nn::KeptChoices>();
  bool has_run = false;
};

using Lives = std::vector<std::vector<bool>>;

/// A forward pass through blocks. The nodes of segments hold copies of it until backward.
struct BlockRun {
  const Model* model;
  nn::ForwardContext step;
  std::shared_ptr<const Lives> lives{};                      // null = the model has one state
  std::shared_ptr<std::map<int64_t, BlockPasses>> passes{};  // null outside of segments
};

void run_block(const BlockRun& run, int64_t index, States& states) {
  nn::ForwardContext step = run.step;
  if (run.passes) {
    BlockPasses& passes = (*run.passes)[index];
    passes.choices->begin_pass();
    step.parts.set(nn::BlockChoices{passes.choices});
    step.is_recomputed = std::exchange(passes.has_run, true);
  }
  const Block& block = run.model->blocks[index];
  const std::vector<at::Tensor> written = written_by(*run.model, index, inputs_of(block, states), step);
  for (size_t i = 0; i < written.size(); ++i) states[block.writes[i]] = written[i];
}

/// Detaches the states without a gradient, so that backward does not go through them, wherever a pipeline is cut.
void cut_gradients(const Model& model, const std::vector<int>& written, States& states) {
  if (model.states.empty()) return;
  for (const int state : written)
    if (!model.states[state].has_gradient && states[state].defined()) states[state] = states[state].detach();
}

/// The states that a segment takes and those that it leaves to later parts.
struct SegmentStates {
  std::vector<int> reads{}, writes{};
};

SegmentStates states_of(const BlockRun& run, const Segment& segment) {
  SegmentStates found;
  std::vector<bool> is_read(state_count(*run.model)), is_written(state_count(*run.model));
  for (int64_t i = segment.first; i < segment.last; ++i) {
    for (const int state : run.model->blocks[i].reads) {
      if (is_read[state] || is_written[state]) continue;
      is_read[state] = true;
      found.reads.push_back(state);
    }
    for (const int state : run.model->blocks[i].writes) is_written[state] = true;
  }
  for (size_t state = 0; state < is_written.size(); ++state)
    if (is_written[state] && (!run.lives || (*run.lives)[segment.last][state]))
      found.writes.push_back(static_cast<int>(state));
  return found;
}

void run_blocks(const BlockRun& run, int64_t first, int64_t last, const Segments& segments, States& states);

void run_segment(BlockRun run, const Segment& segment, States& states) {
  const SegmentStates own = states_of(run, segment);
  if (own.writes.empty()) return run_blocks(run, segment.first, segment.last, {}, states);
  if (!run.passes) run.passes = std::make_shared<std::map<int64_t, BlockPasses>>();
  std::vector<at::Tensor> inputs;
  for (const int state : own.reads) inputs.push_back(states[state]);
  // Backward runs this function again, with only the states that the segment reads.
  const nn::Nary again = [run, segment, own](const std::vector<at::Tensor>& read) {
    States inside(state_count(*run.model));
    for (size_t i = 0; i < read.size(); ++i) inside[own.reads[i]] = read[i];
    run_blocks(run, segment.first, segment.last, segment.parts, inside);
    std::vector<at::Tensor> written;
    for (const int state : own.writes) written.push_back(inside[state]);
    return written;
  };
  const std::vector<at::Tensor> written =
      nn::recomputed(again, inputs, segment.is_on_host ? run.step.inputs.get() : nullptr);
  for (size_t i = 0; i < written.size(); ++i) states[own.writes[i]] = written[i];
  cut_gradients(*run.model, own.writes, states);
  if (run.lives) drop_dead(states, (*run.lives)[segment.last]);
}

/// Runs blocks [first, last), of which `segments` are recomputed.
void run_blocks(const BlockRun& run, int64_t first, int64_t last, const Segments& segments, States& states) {
  auto segment = segments.begin();
  for (int64_t i = first; i < last;) {
    if (segment != segments.end() && segment->first == i) {
      run_segment(run, *segment, states);
      i = (segment++)->last;
      continue;
    }
    run_block(run, i, states);
    cut_gradients(*run.model, run.model->blocks[i].writes, states);
    ++i;
    if (run.lives) drop_dead(states, (*run.lives)[i]);
  }
}

/// Returns the segments of the blocks of a stage. Recompute::Block is a segment for each block.
Segments segments_of(const nn::ForwardContext& step, const Stage& stage) {
  Segments segments;
  if (!step.training) return segments;
  if (step.recompute == nn::Recompute::Block)
    for (int64_t i = stage.first; i < stage.last; ++i)
      segments.push_back({.first = i, .last = i + 1, .is_on_host = true});
  else if (step.segments)
    for (const Segment& segment : *step.segments) {
      if (segment.last <= stage.first || segment.first >= stage.last) continue;
      require(segment.first >= stage.first && segment.last <= stage.last, "model",
              "a recomputed segment must lie within one stage: got blocks [", segment.first, ", ", segment.last,
              ") and a stage of blocks [", stage.first, ", ", stage.last, "); cut the segment there");
      segments.push_back(segment);
    }
  return segments;
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
  BlockRun run{.model = &model, .step = step};
  if (states.size() > 1) run.lives = std::make_shared<const Lives>(lives_of(model));
  if (run.lives && stage.embeds) drop_dead(states, run.lives->front());
  run_blocks(run, stage.first, stage.last, segments_of(step, stage), states);
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

int64_t tokens_of(const Model& model, const nn::ForwardContext& step) {
  if (step.batch->has_tokens()) return step.batch->tokens();
  const State* const first = model.states.empty() ? nullptr : &model.states.at(model.embed.writes.front());
  const std::vector<tensor::Dim> dims = first ? first->dims : std::vector<tensor::Dim>();
  const auto token = std::find(dims.begin(), dims.end(), tensor::Dim::Token);
  if (token == dims.end()) return std::max<int64_t>(1, model.shape.positions);
  return first->sizes(step, -1).at(static_cast<size_t>(token - dims.begin()));
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
  if (const std::optional<int64_t> block = block_of(parameter, shape.blocks()))
    return {std::upper_bound(cuts.begin(), cuts.end(), *block) - cuts.begin() - 1};
  if (parameter.starts_with("norm.") || parameter.starts_with("head.")) return {last};
  if (shape.architecture && shape.architecture->shared)
    if (const auto blocks = shape.architecture->shared(shape, parameter)) {
      std::vector<int64_t> stages;
      for (int64_t stage = 0; stage <= last; ++stage)
        if (cuts[stage] < blocks->second && cuts[stage + 1] > blocks->first) stages.push_back(stage);
      return stages;
    }
  if (parameter.starts_with("embedding.") && (shape.tied || shape.part<MultiTokenSizes>().layers > 0) && last > 0)
    return {0, last};
  return {0};
}

}  // namespace colossal::models
