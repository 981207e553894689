#include "colossal/infer/engine.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/ops/paged_attention.h"

namespace colossal::infer {
namespace {

int64_t blocks_in(distributed::DistributedModel& model, const EngineOptions& options) {
  require(options.block_tokens > 0 && options.block_tokens % ops::kPageUnit == 0, "engine",
          "block_tokens must be a multiple of ", ops::kPageUnit, ": got ", options.block_tokens);
  const std::optional<at::ScalarType> dtype = options.cache_dtype;
  require(!dtype || *dtype == at::kChar || *dtype == at::kFloat8_e4m3fn, "engine",
          "cache_dtype must be the model's dtype, int8 or fp8 (e4m3)");
  const int64_t drafted = options.draft ? ModelRunner::bytes_of_token(*options.draft, dtype) : 0;
  const int64_t block = (ModelRunner::bytes_of_token(model, dtype) + drafted) * options.block_tokens;
  require(options.cache_bytes >= block, "engine", "the KV cache must hold a block of ", options.block_tokens,
          " tokens, which takes ", block, " bytes: got ", options.cache_bytes);
  return options.cache_bytes / block;
}

/// How many tokens of a text behind its sinks go so that it is no longer than `longest`: always as many at a time, half
/// of those that are no sinks, so that texts which begin alike stay alike.
int64_t surplus(int64_t length, int64_t longest, int64_t sinks) {
  const int64_t part = (longest - sinks + 1) / 2;
  return length <= longest ? 0 : (length - longest + part - 1) / part * part;
}

}  // namespace

Engine::Engine(distributed::DistributedModel& model, const EngineOptions& options)
    : options_(options),
      blocks_(blocks_in(model, options)),
      scheduler_({.blocks = blocks_,
                  .block_tokens = options.block_tokens * model.cache_ranks(),
                  .step_tokens = options.step_tokens,
                  .most_running = options.most_running,
                  .keeps_prefixes = options.keeps_prefixes,
                  .window = model.decoding_model().shape.window}),
      runner_(model, {blocks_, options.block_tokens, options.cache_dtype}, options.weights) {
  require(options.guesses >= 0, "engine", "guesses must not be negative: got ", options.guesses);
  require(options.most_waiting >= 0 && options.most_length >= 0, "engine",
          "limits must not be negative: got most_waiting ", options.most_waiting, ", most_length ",
          options.most_length);
  require(!options.draft || options.guesses > 0, "engine", "guesses must be at least 1 with a draft model: got 0");
  if (options.draft)
    drafts_.emplace(*options.draft, runner_.shape().vocabulary,
                    DraftModel::Options{.cache = {blocks_, options.block_tokens, options.cache_dtype},
                                        .step_tokens = options.step_tokens,
                                        .most = options.guesses});
}

int64_t Engine::add(const Request& request) {
  const models::ModelShape& shape = runner_.shape();
  require(options_.most_waiting == 0 || scheduler_.waiting() < options_.most_waiting, "engine",
          "the queue is full: ", options_.most_waiting, " requests wait; retry later");
  require(!request.prompt.empty(), "engine", "a prompt must have at least one token");
  for (const int64_t id : request.prompt)
    require(id >= 0 && id < shape.vocabulary, "engine", "prompt ids must lie in the model's vocabulary of ",
            shape.vocabulary, ": got ", id);
  for (const auto& [biased, bias] : request.sampling.logit_bias)
    require(biased < shape.vocabulary, "sampling", "a logit bias must be of a token of the vocabulary of ",
            shape.vocabulary, ": got ", biased);
  // Where a token depends on the length of its text, it would on those beside it in a step, and on chunks.
  const bool is_even = shape.even_positions == 0 || shape.even_positions >= shape.positions;
  int64_t longest = is_even ? shape.positions : shape.even_positions;
  if (options_.most_length > 0) longest = std::min(longest, options_.most_length);
  int64_t most_new = std::max<int64_t>(request.max_tokens, 0);
  const bool is_scored = request.prompt_log_probabilities >= 0;
  require(!is_scored || request.sinks < 0, "engine",
          "log-probabilities of a prompt exclude sinks, which drop prompt tokens: got sinks ", request.sinks);
  std::vector<int64_t> prompt = request.prompt;
  if (request.sinks >= 0) {
    if (shape.window == 0) longest = std::min(longest, blocks_ * scheduler_.pool().block_tokens());
    require(request.sinks < longest / 2, "engine", "sinks must be less than half of the maximum length of ", longest,
            " tokens: got ", request.sinks);
    const auto first = prompt.begin() + request.sinks;
    prompt.erase(first, first + surplus(static_cast<int64_t>(prompt.size()), longest, request.sinks));
  }
  const auto length = static_cast<int64_t>(prompt.size());
  require(length <= longest, "engine", "a prompt must fit the model's positions: got ", length, " tokens, ", longest,
          " positions",
          is_even ? "" : " before its frequencies depend on the length of a text; run it alone, as one prompt");
  // The last new token is not read again, so it needs no position.
  if (request.sinks < 0) most_new = std::min(most_new, longest - length + 1);
  Running running{request, Sampler(request.sampling, request.prompt), most_new, longest};
  const int64_t id = next_id_;
  if (most_new == 0 && !is_scored) {
    kept_.push_back({id, -1, Ended::AtLength});
    return next_id_++;
  }
  const int64_t read_again = std::max<int64_t>(most_new - 1, 0);  // the last new token is not
  scheduler_.add(id, prompt, std::min(read_again, longest - length), is_scored ? length - 1 : 0);
  if (options_.guesses > 0 && !drafts_) running.lookup.emplace(request.prompt, options_.guesses);
  running_.emplace(id, std::move(running));
  look_up(id);
  return next_id_++;
}

void Engine::cancel(int64_t id) {
  require(running_.count(id) == 1, "engine", "unknown request ", id);
  end(id);
  kept_.push_back({id, -1, Ended::Cancelled});
}

void Engine::drop(int64_t id) {
  if (running_.count(id) == 1) end(id);
  std::erase_if(kept_, [id](const Event& event) { return event.id == id; });
}

void Engine::end(int64_t id) {
  scheduler_.remove(id);
  if (drafts_) drafts_->forget(id);
  running_.erase(id);
}

Engine::Event Engine::fail(int64_t id, const std::exception& error) {
  end(id);
  const auto* own = dynamic_cast<const Error*>(&error);
  return {id, -1, Ended::Failed, {}, own ? own->message() : error.what()};
}

// The next token of a request. Only what belongs to that request may throw here.
int64_t Engine::draw(Running& running, const at::Tensor& logits) {
  TokenConstraint* constraint = running.request.constraint.get();
  const std::deque<DraftedToken>& expected = running.expected;
  const at::Tensor asked = constrained(logits, constraint);
  const int64_t token = expected.empty() ? running.sampler.next(asked) : running.sampler.judge(asked, expected.front());
  if (constraint) constraint->accept(token);
  return token;
}

Engine::Event Engine::advance(int64_t id, const at::Tensor& logits) {
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
    end(id);
  }
  return event;
}

void Engine::score(const Scheduler::Run& run, const at::Tensor& logits) {
  Running& running = running_.at(run.id);
  for (int64_t i = 0; i < run.scored; ++i)
    running.scores.push_back(log_probabilities(logits[i], running.request.prompt[run.first_scored + i + 1],
                                               running.request.prompt_log_probabilities));
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
  shorten(run.id);
  Running& running = running_.at(run.id);
  if (running.lookup) {
    running.lookup->judge(run.proposed, accepted);
    look_up(run.id);
  } else {
    expect(run.id, std::move(running.expected));
  }
}

void Engine::expect(int64_t id, std::deque<DraftedToken> tokens) {
  std::vector<int64_t> proposed;
  for (const DraftedToken& expected : tokens)
    if (expected.token >= 0) proposed.push_back(expected.token);
  scheduler_.propose(id, std::move(proposed));
  running_.at(id).expected = std::move(tokens);
}

// As many as can all be drawn and read: each gives one more.
int64_t Engine::most_guesses_of(int64_t id) const {
  const Running& running = running_.at(id);
  const int64_t readable = running.longest - static_cast<int64_t>(scheduler_.tokens(id).size());
  return std::max<int64_t>(0, std::min(readable, running.most_new - running.made - 1));
}

// No guess goes beyond the longest text, so with the token that does all of them were judged.
void Engine::shorten(int64_t id) {
  const Running& running = running_.at(id);
  const auto length = static_cast<int64_t>(scheduler_.tokens(id).size());
  if (running.request.sinks < 0 || length <= running.longest) return;
  scheduler_.cut(id, running.request.sinks, surplus(length, running.longest, running.request.sinks));
  if (drafts_) drafts_->forget(id);
}

void Engine::look_up(int64_t id) {
  Running& running = running_.at(id);
  if (!running.lookup) return;
  std::deque<DraftedToken> tokens;
  for (const int64_t token : running.lookup->propose(most_guesses_of(id))) tokens.push_back({token});
  expect(id, std::move(tokens));
}

// Of the requests that have none left. Where a step has no room for all tokens of a draft, those that are left stay
// expected, and the token behind all of them is chosen as without a draft: what a request is answered does not depend
// on that room.
void Engine::write_drafts() {
  std::vector<DraftModel::Wish> wishes;
  for (const auto& [id, running] : running_) {
    if (running.made == 0 || !running.expected.empty()) continue;
    const TokenConstraint* constraint = running.request.constraint.get();
    std::shared_ptr<TokenConstraint> copy;
    try {
      if (constraint) copy = constraint->copy();
    } catch (const std::exception&) {  // this request goes on without draft tokens
      continue;
    }
    wishes.push_back({.id = id,
                      .tokens = scheduler_.tokens(id),
                      .most = std::min(options_.guesses, most_guesses_of(id)),
                      .sampler = running.sampler.for_draft(),
                      .constraint = std::move(copy),
                      .end_ids = running.request.end_ids});
  }
  std::vector<std::vector<DraftedToken>> drafts = drafts_->write(wishes);
  for (size_t i = 0; i < wishes.size(); ++i) {
    std::deque<DraftedToken> tokens(drafts[i].begin(), drafts[i].end());
    tokens.push_back({-1});
    expect(wishes[i].id, std::move(tokens));
  }
}

std::vector<Engine::Event> Engine::step() {
  std::vector<Event> events = std::exchange(kept_, {});
  const std::vector<Scheduler::Run> step = scheduler_.next();
  if (step.empty()) return events;
  const at::Tensor logits = runner_.logits(scheduler_, step);
  int64_t row = 0;
  for (const Scheduler::Run& run : step) {
    score(run, logits.narrow(0, row, run.scored));
    row += run.scored;
    if (!run.is_last) continue;
    const size_t first = events.size();
    std::vector<LogProbabilities> scores = std::move(running_.at(run.id).scores);
    if (running_.at(run.id).most_new > 0) {
      advance_all(run, logits.narrow(0, row, 1 + run.proposed), events);
    } else {
      events.push_back({run.id, -1, Ended::AtLength});
      end(run.id);
    }
    events[first].prompt_log_probabilities = std::move(scores);
    row += 1 + run.proposed;
  }
  if (drafts_) write_drafts();
  return events;
}

std::vector<Engine::Event> Engine::step(int64_t id) {
  std::vector<Event> own;
  std::vector<Event> others;
  for (Event& event : step()) (event.id == id ? own : others).push_back(std::move(event));
  kept_.insert(kept_.begin(), std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()));
  return own;
}

}  // namespace colossal::infer
