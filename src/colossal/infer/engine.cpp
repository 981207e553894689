#include "colossal/infer/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/infer/admission.h"
#include "colossal/infer/decoding/lone_runner.h"
#include "colossal/infer/decoding/model_runner.h"
#include "colossal/models/shape_parts.h"
#include "colossal/ops/attention/paged.h"
#include "colossal/ops/linear_token_scores.h"

namespace colossal::infer {
namespace {

/// Returns the number of multi-token layers that write the draft tokens; 0 = they have another source.
int64_t drafting_layers(distributed::DistributedModel& model, const EngineOptions& options) {
  return options.draft_tokens > 0 && !options.draft ? MultiTokenDrafts::layers_of(model) : 0;
}

int64_t blocks_in(distributed::DistributedModel& model, const EngineOptions& options) {
  require(options.block_tokens > 0 && options.block_tokens % ops::kPageUnit == 0, "engine",
          "block_tokens must be a multiple of ", ops::kPageUnit, ": got ", options.block_tokens);
  const std::optional<at::ScalarType> dtype = options.cache_dtype;
  require(!dtype || *dtype == at::kChar || *dtype == at::kFloat8_e4m3fn, "engine",
          "cache_dtype must be the model's dtype, int8 or fp8 (e4m3)");
  const int64_t drafted = options.draft ? ModelRunner::bytes_of_token(*options.draft, dtype) : 0;
  const int64_t own = ModelRunner::bytes_of_token(model, dtype, drafting_layers(model, options));
  const int64_t block = (own + drafted) * options.block_tokens;
  require(options.cache_bytes >= block, "engine", "the KV cache must hold a block of ", options.block_tokens,
          " tokens, which takes ", block, " bytes: got ", options.cache_bytes);
  return options.cache_bytes / block;
}

std::unique_ptr<StepRunner> make_runner(distributed::DistributedModel& model, const EngineOptions& options) {
  if (!options.alone) {
    const ModelRunner::Cache cache{blocks_in(model, options), options.block_tokens, options.cache_dtype,
                                   options.draft_tokens};
    auto runner = std::make_unique<ModelRunner>(model, cache);
    const bool has_own_drafts = drafting_layers(model, options) > 0;
    require(!has_own_drafts || !runner->remembers_tokens(), "engine",
            "multi-token layers draft no tokens for a model with layers that read the tokens before each token; set "
            "--draft-tokens 0");
    if (has_own_drafts) runner->keep_hidden();
    return runner;
  }
  auto runner = std::make_unique<LoneRunner>(model);
  std::vector<std::string> asked;
  if (options.draft_tokens > 0) asked.emplace_back("draft_tokens");
  if (options.draft) asked.emplace_back("draft");
  if (options.cache_dtype) asked.emplace_back("kv_cache_dtype");
  refuse_unused(asked, runner->unused(), runner->name(), component_of(options));
  return runner;
}

SchedulerOptions scheduler_options(distributed::DistributedModel& model, const EngineOptions& options) {
  if (options.alone) return LoneRunner::scheduling(model.decoding_model().shape);
  return {.blocks = blocks_in(model, options),
          .block_tokens = options.block_tokens * model.cache_ranks(),
          .step_tokens = options.step_tokens,
          .max_running = options.max_running,
          // a layer that remembers tokens must read a sequence from its start
          .keeps_prefixes = options.keeps_prefixes && model.decoding_model().neighbour_layers == 0,
          .window = model.decoding_model().shape.part<models::SlidingWindow>().tokens};
}

}  // namespace

Engine::Engine(distributed::DistributedModel& model, const EngineOptions& options)
    : options_(options),
      runner_(make_runner(model, options)),
      scheduler_(scheduler_options(model, options)),
      words_of_rank_(model.words_of_rank()) {
  require(options.draft_tokens >= 0, "engine", "draft_tokens must not be negative: got ", options.draft_tokens);
  require(options.max_waiting >= 0 && options.max_length >= 0, "engine",
          "limits must not be negative: got max_waiting ", options.max_waiting, ", max_length ", options.max_length);
  require(std::set<std::string>(options.adapters.begin(), options.adapters.end()).size() == options.adapters.size() &&
              std::find(options.adapters.begin(), options.adapters.end(), "") == options.adapters.end(),
          "engine", "adapters must have different names: got ", join(options.adapters));
  require(!options.draft || options.draft_tokens > 0, "engine",
          "draft_tokens must be at least 1 with a draft model: got 0");
  if (options.draft)
    drafts_.emplace(*options.draft, runner_->shape().vocabulary,
                    DraftModel::Options{.cache = {blocks(), options.block_tokens, options.cache_dtype},
                                        .step_tokens = options.step_tokens,
                                        .max_draft_tokens = options.draft_tokens});
  if (!options.alone && drafting_layers(model, options) > 0)
    own_drafts_.emplace(model, static_cast<ModelRunner&>(*runner_));
}

Admission Engine::admitted(const Request& request) const {
  Admission admitted = admit(request, {*runner_, scheduler_, options_});
  require(request.after >= -1 && request.after < next_id_, component_of(options_),
          "after must be the id of an earlier request, or -1: got ", request.after);
  return admitted;
}

void Engine::check(const Request& request) const {
  admitted(request);
  request.options.sampling.check();
}

int64_t Engine::add(Request request, OnEvent on_event) {
  require(options_.max_waiting == 0 || scheduler_.waiting() < options_.max_waiting, "engine",
          "the queue is full: ", options_.max_waiting, " requests wait; retry later");
  Admission admission = admitted(request);
  Sampler sampler(request.options.sampling, request.prompt);
  const int64_t id = next_id_;
  if (admission.needs_steps())
    begin(id, {std::move(request), std::move(sampler), admission.max_new_tokens, admission.longest}, admission);
  else
    kept_.push_back({id, -1, FinishReason::AtLength});
  callers_.emplace(id, std::make_shared<const OnEvent>(std::move(on_event)));
  return next_id_++;
}

/// Returns the number of a request's adapter.
int64_t Engine::adapter_of(const Request& request) const {
  const std::vector<std::string>& names = adapters();
  const auto found = std::find(names.begin(), names.end(), request.adapter);
  return request.adapter.empty() || found == names.end() ? nn::kBase : found - names.begin();
}

void Engine::begin(int64_t id, Running running, const Admission& admission) {
  const Request& request = running.request;
  const bool is_pooled = request.pooling.has_value();
  if (is_pooled) running.pool.emplace(*request.pooling, request.normalizes);
  const auto length = static_cast<int64_t>(admission.text.size());
  const int64_t adapter = adapter_of(request);
  std::string key = runner_->cache_key(request, length, admission.room);
  if (!adapters().empty()) key = concat(adapter, " ", key);  // keys and values are those of one adapter
  scheduler_.add(id, admission.text, admission.read_again,
                 {.first_scored = admission.first_scored,
                  .scored = admission.scored,
                  .wants_next = admission.max_new_tokens > 0,
                  .is_pooled = is_pooled,
                  .client = options_.alone ? std::string() : request.client,  // a lone request runs to its end
                  .cache_key = std::move(key),
                  .after = request.after});
  runner_->begin(id, admission.text, admission.room, adapter);
  const bool looks_up = options_.draft_tokens > 0 && !drafts_ && !own_drafts_ && !is_pooled;
  if (looks_up) running.lookup.emplace(request.prompt, options_.draft_tokens);
  running_.emplace(id, std::move(running));
  look_up(id);
}

int64_t Engine::max_length() const {
  const int64_t longest = std::min(runner_->longest(), scheduler_.max_length());
  return options_.max_length > 0 ? std::min(longest, options_.max_length) : longest;
}

Engine::Load Engine::load() const {
  return {.waiting = scheduler_.waiting(),
          .running = scheduler_.running(),
          .blocks_used = blocks() - scheduler_.pool().free()};
}

void Engine::cancel(int64_t id) {
  require(callers_.count(id) == 1, "engine", "unknown request ", id);
  const int64_t found = running_.count(id) == 1 ? scheduler_.found(id) : 0;
  forget(id);
  kept_.push_back({.id = id, .token = -1, .finish_reason = FinishReason::Cancelled, .found = found});
}

void Engine::drop(int64_t id) {
  forget(id);
  callers_.erase(id);
}

// Drops the request's undelivered events because the caller does not want its tokens any more.
void Engine::forget(int64_t id) {
  if (running_.count(id) == 1) end(id);
  const auto is_own = [id](const Event& event) { return event.id == id; };
  std::erase_if(ready_, is_own);
  std::erase_if(kept_, is_own);
}

void Engine::end(int64_t id) {
  scheduler_.remove(id);
  runner_->end(id);
  if (drafts_) drafts_->forget(id);
  running_.erase(id);
}

Event Engine::fail(int64_t id, const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  Event event{id, -1, FinishReason::Failed, own ? own->message() : error.what()};
  event.found = scheduler_.found(id);
  end(id);
  return event;
}

// Draws the next token of a request. run_step() turns an error thrown here into the end of this request alone, so only
// the request's own constraint and sampler may throw.
int64_t Engine::draw(Running& running, const at::Tensor& logits) {
  TokenConstraint* constraint = running.request.constraint.get();
  const std::deque<DraftedToken>& expected = running.expected;
  const at::Tensor asked = constrained(logits, constraint);
  const int64_t token = expected.empty() ? running.sampler.next(asked) : running.sampler.judge(asked, expected.front());
  if (constraint) constraint->accept(token);
  return token;
}

Event Engine::advance(int64_t id, const at::Tensor& logits) {
  Running& running = running_.at(id);
  std::deque<DraftedToken>& expected = running.expected;
  int64_t token = -1;
  try {
    token = draw(running, logits);
  } catch (const std::exception& error) {
    return fail(id, error);
  }
  if (!expected.empty() && (expected.front().token == token || expected.front().token < 0))
    expected.pop_front();
  else
    expected.clear();
  const std::vector<int64_t>& ends = running.request.end_ids;
  ++running.made;
  Event event{.id = id, .token = token, .found = scheduler_.found(id)};
  const GenerationOptions& asked = running.request.options;
  if (std::find(ends.begin(), ends.end(), token) != ends.end())
    event.finish_reason = FinishReason::AtEnd;
  else if (running.made == running.max_new_tokens)
    event.finish_reason = running.made == asked.max_tokens ? FinishReason::AtLength : FinishReason::AtPositions;
  if (asked.logprobs >= 0) event.log_probabilities = log_probabilities(logits, token, asked.logprobs);
  if (running.request.scores_draws)
    drawn_.push_back({logits, token, asked.sampling.temperature, ready_.size()});  // the caller appends the event
  scheduler_.append(id, token);  // the last token, too: it counts for turns
  if (running.lookup) running.lookup->push(token);
  if (event.finish_reason != FinishReason::None) end(id);
  return event;
}

// All tokens of a step together, because an operator takes longer to start than to score a token.
void Engine::score_draws() {
  std::map<double, std::vector<const Drawn*>> by_temperature;
  for (const Drawn& one : drawn_) by_temperature[one.temperature == 0 ? 1 : one.temperature].push_back(&one);
  for (const auto& [temperature, all] : by_temperature) {
    std::vector<at::Tensor> rows;
    std::vector<int64_t> labels;
    for (const Drawn* one : all) rows.push_back(one->logits), labels.push_back(one->token);
    const at::Tensor logits = at::stack(rows);
    const at::Tensor scores = ops::logit_scores(logits, at::tensor(labels, at::kLong).to(logits.device()),
                                                {.temperature = temperature}, words_of_rank_)
                                  .log_probabilities.to(at::kDouble)
                                  .cpu();
    for (size_t i = 0; i < all.size(); ++i)
      ready_[all[i]->event].drawn_log_probability = scores.const_data_ptr<double>()[i];
  }
  drawn_.clear();
}

void Engine::score(const Scheduler::ScheduledTokens& scheduled, const at::Tensor& logits) {
  Running& running = running_.at(scheduled.id);
  const Request& request = running.request;
  for (int64_t i = 0; i < scheduled.scored; ++i)
    running.scores.push_back(log_probabilities(logits[i], request.prompt[scheduled.first_scored + i + 1],
                                               request.options.prompt_logprobs,
                                               running.scores.empty() ? request.alternatives : std::vector<int64_t>()));
}

// `logits` has a row after the last token of the request and one after each proposed token. Returns the number of
// accepted tokens; none if the request has ended, or will be read again because tokens were dropped.
std::optional<int64_t> Engine::advance_all(const Scheduler::ScheduledTokens& scheduled, const at::Tensor& logits) {
  const std::vector<int64_t> proposed = scheduler_.proposed(scheduled.id);
  int64_t accepted = 0;
  ready_.push_back(advance(scheduled.id, logits[0]));
  while (accepted < scheduled.proposed && ready_.back().finish_reason == FinishReason::None &&
         ready_.back().token == proposed[accepted])
    ready_.push_back(advance(scheduled.id, logits[++accepted]));
  draft_counts_.proposed += scheduled.proposed, draft_counts_.accepted += accepted;
  if (ready_.back().finish_reason != FinishReason::None) return {};
  scheduler_.accept(scheduled.id, accepted);
  const bool is_cut = shorten(scheduled.id);
  Running& running = running_.at(scheduled.id);
  if (running.lookup) {
    running.lookup->judge(scheduled.proposed, accepted);
    look_up(scheduled.id);
  } else {
    expect(scheduled.id, std::move(running.expected));
  }
  return is_cut ? std::optional<int64_t>() : accepted;
}

void Engine::expect(int64_t id, std::deque<DraftedToken> tokens) {
  std::vector<int64_t> proposed;
  for (const DraftedToken& expected : tokens)
    if (expected.token >= 0) proposed.push_back(expected.token);
  scheduler_.propose(id, std::move(proposed));
  running_.at(id).expected = std::move(tokens);
}

// Limits draft tokens to those that can all be accepted and read. A step also yields one token beyond the accepted
// ones.
int64_t Engine::max_draft_tokens_of(int64_t id) const {
  const Running& running = running_.at(id);
  const int64_t readable = running.longest - static_cast<int64_t>(scheduler_.tokens(id).size());
  return std::max<int64_t>(0, std::min(readable, running.max_new_tokens - running.made - 1));
}

// Draft tokens never exceed the maximum length. So when a token does, all draft tokens were judged already. Returns
// true if tokens were dropped.
bool Engine::shorten(int64_t id) {
  const Running& running = running_.at(id);
  const auto length = static_cast<int64_t>(scheduler_.tokens(id).size());
  const int64_t attention_sinks = running.request.options.attention_sinks;
  if (attention_sinks < 0 || length <= running.longest) return false;
  scheduler_.cut(id, attention_sinks, surplus(length, running.longest, attention_sinks));
  if (drafts_) drafts_->forget(id);
  return true;
}

void Engine::look_up(int64_t id) {
  Running& running = running_.at(id);
  if (!running.lookup) return;
  std::deque<DraftedToken> tokens;
  for (const int64_t token : running.lookup->propose(max_draft_tokens_of(id))) tokens.push_back({token});
  expect(id, std::move(tokens));
}

// Writes drafts for the requests that have no draft tokens left. If a step has no room for all tokens of a draft, the
// remaining ones stay expected. The token after all of them is chosen as without a draft, so the completion of a
// request does not depend on that room.
void Engine::write_drafts() {
  std::vector<DraftModel::DraftRequest> requests;
  for (const auto& [id, running] : running_) {
    if (running.made == 0 || !running.expected.empty()) continue;
    const TokenConstraint* constraint = running.request.constraint.get();
    std::shared_ptr<TokenConstraint> copy;
    try {
      if (constraint) copy = constraint->copy();
    } catch (const std::exception&) {  // this request continues without draft tokens
      continue;
    }
    requests.push_back({.id = id,
                        .tokens = scheduler_.tokens(id),
                        .max_draft_tokens = std::min(options_.draft_tokens, max_draft_tokens_of(id)),
                        .sampler = running.sampler.for_draft(),
                        .constraint = std::move(copy),
                        .end_ids = running.request.end_ids});
  }
  std::vector<std::vector<DraftedToken>> drafts = drafts_->write(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::deque<DraftedToken> tokens(drafts[i].begin(), drafts[i].end());
    tokens.push_back({-1});
    expect(requests[i].id, std::move(tokens));
  }
}

// Writes drafts with the multi-token layers, which also read the chunks of prompts. Draft tokens use only free blocks,
// and return them before the next step.
void Engine::write_own_drafts(std::vector<MultiTokenDrafts::Sequence> read) {
  for (MultiTokenDrafts::Sequence& sequence : read) {
    sequence.tokens = scheduler_.tokens(sequence.id);
    if (sequence.wants_drafts) {
      const int64_t wanted = std::min(options_.draft_tokens, max_draft_tokens_of(sequence.id)),
                    used = own_drafts_->entries_for(sequence, wanted);
      const int64_t lacking = used - scheduler_.reserve(sequence.id, used);
      sequence.max_draft_tokens = wanted - std::max<int64_t>(lacking, 0);
    }
    sequence.blocks = scheduler_.blocks(sequence.id);
  }
  const std::vector<std::vector<int64_t>> drafts = own_drafts_->write(read);
  for (size_t i = 0; i < read.size(); ++i) {
    if (!read[i].wants_drafts) continue;
    scheduler_.release(read[i].id);
    std::deque<DraftedToken> tokens;
    for (const int64_t token : drafts[i]) tokens.push_back({token});
    expect(read[i].id, std::move(tokens));
  }
}

// Ends a request whose prompt was read and that wants no token.
void Engine::end_text(int64_t id) {
  Event event{.id = id, .token = -1, .finish_reason = FinishReason::AtLength, .found = scheduler_.found(id)};
  if (const Running& running = running_.at(id); running.pool) event.vector = running.pool->vector();
  ready_.push_back(std::move(event));
  end(id);
}

void Engine::pool(const std::vector<Scheduler::ScheduledTokens>& step) {
  // After a preemption a text reads tokens again whose states were added before.
  const auto has_states = [](const Scheduler::ScheduledTokens& one) { return one.is_pooled && one.scored > 0; };
  if (std::none_of(step.begin(), step.end(), has_states)) return;
  const at::Tensor states = runner_->states();
  int64_t row = 0;
  for (const Scheduler::ScheduledTokens& scheduled : step) {
    if (!scheduled.is_pooled) continue;
    running_.at(scheduled.id).pool->add(states.narrow(0, row, scheduled.scored));
    row += scheduled.scored;
  }
}

void Engine::run_step() {
  const std::vector<Scheduler::ScheduledTokens> step = scheduler_.next();
  if (step.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor logits = runner_->logits(scheduler_, step);
  drawn_.clear();
  pool(step);
  int64_t row = 0, place = 0;
  std::vector<MultiTokenDrafts::Sequence> read;
  for (const Scheduler::ScheduledTokens& scheduled : step) {
    MultiTokenDrafts::Sequence own{scheduled.id, place, scheduled.first, scheduled.count, scheduled.is_last};
    place += scheduled.count + scheduled.proposed;
    if (scheduled.is_pooled) {
      if (scheduled.is_last) end_text(scheduled.id);
      continue;
    }
    score(scheduled, logits.narrow(0, row, scheduled.scored));
    row += scheduled.scored;
    if (!scheduled.is_last) {
      read.push_back(std::move(own));
      continue;
    }
    const size_t first = ready_.size();
    std::vector<LogProbabilities> scores = std::move(running_.at(scheduled.id).scores);
    if (scheduled.wants_next) {
      const auto accepted = advance_all(scheduled, logits.narrow(0, row, 1 + scheduled.proposed));
      row += 1 + scheduled.proposed;
      own.count += accepted.value_or(0);
      if (accepted) read.push_back(std::move(own));
    } else {
      end_text(scheduled.id);
    }
    ready_[first].prompt_log_probabilities = std::move(scores);
  }
  score_draws();
  if (drafts_) write_drafts();
  if (own_drafts_ && !read.empty()) write_own_drafts(std::move(read));
}

// The function may drop its own request, so a shared pointer keeps it alive during the call.
void Engine::deliver() {
  while (!ready_.empty()) {
    const Event event = std::move(ready_.front());
    ready_.pop_front();
    const std::shared_ptr<const OnEvent> on_event = callers_.at(event.id);
    if (event.finish_reason != FinishReason::None) callers_.erase(event.id);
    if (*on_event) (*on_event)(event);
  }
}

void Engine::step() {
  require(!delivers_, "engine", "step() must not be called by a function that hears events");
  std::move(kept_.begin(), kept_.end(), std::back_inserter(ready_));
  kept_.clear();
  run_step();
  delivers_ = true;
  try {
    deliver();
  } catch (...) {
    delivers_ = false;
    throw;
  }
  delivers_ = false;
}

}  // namespace colossal::infer
