#include "colossal/infer/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/ops/paged_attention.h"

namespace colossal::infer {
namespace {

/// Of a token in all layers of a rank, at most: each stage of a pipeline has some, and its share of heads.
int64_t bytes_of_token(distributed::DistributedModel& model) {
  const models::ModelShape& s = model.decoding_model().shape;
  const int64_t unit = ops::kPageUnit, padded = (s.head_dim + unit - 1) / unit * unit;
  const auto item = static_cast<int64_t>(c10::elementSize(model.parameters().options().dtype));
  return s.layers * s.kv_heads * (s.head_dim + padded) * item;
}

int64_t blocks_in(distributed::DistributedModel& model, const EngineOptions& options) {
  require(options.block_tokens > 0 && options.block_tokens % ops::kPageUnit == 0, "engine",
          "blocks must be of a multiple of ", ops::kPageUnit, " tokens: got ", options.block_tokens);
  const int64_t block = bytes_of_token(model) * options.block_tokens;
  require(options.cache_bytes >= block, "engine", "the cache must hold a block of ", options.block_tokens,
          " tokens, which takes ", block, " bytes: got ", options.cache_bytes);
  return options.cache_bytes / block;
}

distributed::DistributedModel& checked(distributed::DistributedModel& model) {
  const models::Model& decoding = model.decoding_model();
  const models::Task task = decoding.shape.task();
  require(task.objective == models::Objective::NextToken, "engine",
          "many texts at once are continued by models that are asked for the next token: got a ",
          decoding.shape.architecture->name, ", which ", task.purpose(), "; give it one prompt");
  return model;
}

}  // namespace

Engine::Engine(distributed::DistributedModel& model, const EngineOptions& options)
    : model_(checked(model)),
      scheduler_({.blocks = blocks_in(model, options),
                  .block_tokens = options.block_tokens * model.cache_ranks(),
                  .step_tokens = options.step_tokens,
                  .most_running = options.most_running,
                  .keeps_prefixes = options.keeps_prefixes,
                  .window = model.decoding_model().shape.window}),
      cache_(model.make_paged_cache(scheduler_.pool().blocks(), options.block_tokens)),
      weights_(options.weights),
      most_guesses_(options.guesses) {
  require(options.guesses >= 0, "engine", "tokens that are guessed must not be negative: got ", options.guesses);
}

int64_t Engine::add(const Request& request) {
  const models::ModelShape& shape = model_.decoding_model().shape;
  const auto length = static_cast<int64_t>(request.prompt.size());
  require(length > 0, "engine", "a prompt must hold a token");
  // Where a token depends on the length of its text, it would on those beside it in a step, and on chunks.
  const bool is_even = shape.even_positions == 0 || shape.even_positions >= shape.positions;
  const int64_t positions = is_even ? shape.positions : shape.even_positions;
  require(length <= positions, "engine", "a prompt must fit the model's positions: got ", length, " tokens, ",
          positions, " positions",
          is_even ? "" : " before its frequencies depend on the length of a text: give it alone, as one prompt");
  for (const int64_t id : request.prompt)
    require(id >= 0 && id < shape.vocabulary, "engine", "prompt ids must lie in the model's vocabulary of ",
            shape.vocabulary, ": got ", id);
  // The last new token is not read again, so it needs no position.
  const int64_t most_new = std::min(std::max<int64_t>(request.max_tokens, 0), positions - length + 1);
  for (const auto& [biased, bias] : request.sampling.logit_bias)
    require(biased < shape.vocabulary, "sampling", "a logit bias must be of a token of the vocabulary of ",
            shape.vocabulary, ": got ", biased);
  Running running{request, Sampler(request.sampling, request.prompt), most_new};
  const int64_t id = next_id_;
  if (most_new == 0) {
    ended_.push_back({id, -1, Ended::AtLength});
    return next_id_++;
  }
  scheduler_.add(id, request.prompt, most_new - 1);
  if (most_guesses_ > 0) running.lookup.emplace(request.prompt, most_guesses_);
  running_.emplace(id, std::move(running));
  guess(id);
  return next_id_++;
}

void Engine::cancel(int64_t id) {
  require(running_.erase(id) == 1, "engine", "there is no request ", id);
  scheduler_.remove(id);
  ended_.push_back({id, -1, Ended::Cancelled});
}

// Logits [n, V] of what follows each run that is the last of its request, and each token proposed behind it.
at::Tensor Engine::logits_of(const std::vector<Scheduler::Run>& step) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> ids, positions, last;
  std::vector<ops::PagedSequence> sequences;
  nn::Step pass;
  for (const Scheduler::Run& run : step) {
    const std::vector<int64_t>& tokens = scheduler_.tokens(run.id);
    for (int64_t i = run.first; i < run.first + run.count; ++i) ids.push_back(tokens[i]), positions.push_back(i);
    if (run.is_last) last.push_back(static_cast<int64_t>(ids.size()) - 1);
    for (int64_t i = 0; i < run.proposed; ++i) {
      ids.push_back(scheduler_.proposed(run.id)[i]), positions.push_back(run.first + run.count + i);
      last.push_back(static_cast<int64_t>(ids.size()) - 1);
    }
    sequences.push_back({scheduler_.blocks(run.id), run.first});
    pass.sequences.lengths.push_back(run.count + run.proposed);
  }
  cache_->take(std::move(sequences));
  // made there: only logits make the host wait
  const nn::Parameters::Options& made = model_.parameters().options();
  const auto options = at::TensorOptions().dtype(made.dtype).device(made.device);
  const auto there = [&](const std::vector<int64_t>& numbers) { return at::tensor(numbers, options.dtype(at::kLong)); };
  const models::Model& model = model_.decoding_model();
  // a layout that splits the batch gets copies of the row, of which the first counts
  const int64_t rows = model.batch_parts;
  pass.positions = there(positions).repeat({rows, 1});
  pass.cache = cache_.get();
  const at::Tensor wanted = there(last);
  const at::Tensor none = at::empty({static_cast<int64_t>(last.size()), model.shape.vocabulary}, options);
  at::Tensor logits = model_.everywhere(
      {there(ids).repeat({rows, 1}), pass},
      [&](int, const at::Tensor& hidden, const nn::Step& own) {
        return last.empty() ? none : model.head->logits(hidden.index_select(1, wanted), own)[0];
      },
      none);
  if (weights_) weights_->end_pass();
  return logits;
}

Engine::Event Engine::advance(int64_t id, const at::Tensor& logits) {
  Running& running = running_.at(id);
  TokenConstraint* constraint = running.request.constraint.get();
  const int64_t token = running.sampler.next(constrained(logits, constraint));
  if (constraint) constraint->accept(token);
  const std::vector<int64_t>& ends = running.request.end_ids;
  ++running.made;
  Event event{id, token, Ended::No};
  if (std::find(ends.begin(), ends.end(), token) != ends.end())
    event = Event{id, -1, Ended::AtEnd};
  else if (running.made == running.most_new)
    event.ended = running.made == running.request.max_tokens ? Ended::AtLength : Ended::AtPositions;
  if (event.token >= 0 && running.request.log_probabilities >= 0)
    event.log_probabilities = log_probabilities(logits, token, running.request.log_probabilities);
  if (event.ended == Ended::No) {
    scheduler_.append(id, token);
    if (running.lookup) running.lookup->push(token);
  } else {
    scheduler_.remove(id);
    running_.erase(id);
  }
  return event;
}

// Of the logits after its last token and after each that was proposed behind it.
void Engine::advance_all(const Scheduler::Run& run, const at::Tensor& logits, std::vector<Event>& events) {
  const std::vector<int64_t> proposed = scheduler_.proposed(run.id);
  int64_t accepted = 0;
  events.push_back(advance(run.id, logits[0]));
  while (accepted < run.proposed && events.back().ended == Ended::No && events.back().token == proposed[accepted])
    events.push_back(advance(run.id, logits[++accepted]));
  guesses_.proposed += run.proposed, guesses_.accepted += accepted;
  if (events.back().ended != Ended::No) return;
  scheduler_.accept(run.id, accepted);
  if (auto& lookup = running_.at(run.id).lookup) lookup->judge(run.proposed, accepted);
  guess(run.id);
}

// As many as can all be drawn: each gives one more.
void Engine::guess(int64_t id) {
  Running& running = running_.at(id);
  if (running.lookup) scheduler_.propose(id, running.lookup->propose(running.most_new - running.made - 1));
}

std::vector<Engine::Event> Engine::step() {
  std::vector<Event> events = std::move(ended_);
  ended_.clear();
  const std::vector<Scheduler::Run> step = scheduler_.next();
  if (step.empty()) return events;
  const at::Tensor logits = logits_of(step);
  int64_t row = 0;
  for (const Scheduler::Run& run : step) {
    if (!run.is_last) continue;
    advance_all(run, logits.narrow(0, row, 1 + run.proposed), events);
    row += 1 + run.proposed;
  }
  return events;
}

}  // namespace colossal::infer
