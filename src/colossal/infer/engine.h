// Many requests at once through one model. The answer to a request does not depend on the others.
//
//   infer::Engine engine(*saved.model, {.cache_bytes = int64_t{1} << 30});
//   engine.add({.prompt = ids, .end_ids = saved.end_ids, .options = {.max_tokens = 200}},
//              [&](const infer::Event& event) { if (event.is_answer()) answer.push_back(event.token); });
//   while (engine.has_work()) engine.step();
//
// Packed batches [1, T] of unequal sequences go through the model that training uses (model_runner.h), with a paged
// cache (nn/paged_cache.h) whose blocks a Scheduler assigns. With EngineOptions::alone requests run one after another
// (lone_runner.h). Sampler, constraint, limits and events are the same for both.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/draft_model.h"
#include "colossal/infer/ngram_lookup.h"
#include "colossal/infer/request.h"
#include "colossal/infer/runner.h"
#include "colossal/infer/scheduler.h"

namespace colossal::infer {

struct EngineOptions {
  int64_t cache_bytes = int64_t{1} << 30;  ///< of keys and values on a rank
  /// Element type of the cache: kChar or kFloat8_e4m3fn, codes of 8 bits (ops/row_codes.h); none: the model's dtype.
  std::optional<at::ScalarType> cache_dtype{};
  int64_t block_tokens = 64;   ///< tokens that a rank has of a block: a multiple of ops::kPageUnit
  int64_t step_tokens = 512;   ///< tokens of all requests in a step, at most
  int64_t most_running = 256;  ///< requests that have blocks at a time
  int64_t most_waiting = 0;    ///< requests that wait for their first step; 0 = any number
  int64_t most_length = 0;     ///< tokens of a text with its prompt; 0 = as positions and cache allow
  bool keeps_prefixes = true;  ///< a prefix that requests have in common is computed once
  int64_t guesses = 0;         ///< draft tokens of a request in a step, at most; 0 = off
  /// Draft model: a smaller model of the same vocabulary and layout (draft_model.h), with a cache of as many tokens in
  /// the same cache_bytes. Null: draft tokens are looked up in the text (ngram_lookup.h).
  distributed::DistributedModel* draft = nullptr;
  /// Requests run one at a time, each with a cache of its own size (LoneRunner): for models with an encoder, prompts
  /// that ranks of parallel.sequence share, positions that depend on the length of a text, and accelerators. The
  /// options of the cache, of steps and of draft tokens have no effect then. Draft tokens, a draft model and a
  /// cache_dtype are refused.
  bool alone = false;
};

/// Layouts, communication: those of ModelRunner, of at most step_tokens tokens a step, or of LoneRunner. All ranks of a
///                layout must add and cancel the same requests in the same order.
/// Numbers:       with packed weights (nn::PrepackedLayers) and our kernel of attention (ops::has_paged_attention) the
///                tokens of a request are the same bits for any other requests, preemptions and cached blocks. Without
///                them, products of LibTorch may differ in the last bits.
/// Draft tokens:  run behind the last token of a request, up to the first one that is not drawn. Looked-up ones, and
///                all at temperature 0, leave the answer as it is without them: each token is chosen by the same draw,
///                from logits that draft tokens had no part in. Drawn tokens of a draft model are judged by
///                Sampler::judge(): the distribution of the answer stays, by other draws. The answer is then a function
///                of the request, both models and `guesses`, whatever room a step has.
/// Positions:     the runner's longest() (models::ModelShape::even_positions), so that no request depends on others.
/// Order:         requests begin in the order in which they came, and each that has begun goes on with every step. If
///                blocks lack, the request that began last waits, before all that have not begun. No request is
///                overtaken.
/// Events:        step() calls the function that was given with a request for each of its events, after the step has
///                run: in the order of requests, and those of a request in the order of its tokens. That function may
///                call add(), cancel() and drop(), but not step(). If it throws, the error passes through step(), and
///                the next step() delivers the events that are left.
/// Endless texts: (GenerationOptions::sinks) when a text is longer than positions, cache and most_length allow, tokens
///                after its sinks are dropped, and the rest is read again as a new text. The answer is then that of the
///                model to this text, for any kind of positions. Cost: about one prompt token per new token.
/// Thread safety: none.
class Engine {
 public:
  struct Guesses {
    int64_t proposed = 0, accepted = 0;  ///< draft tokens that were run; those that were drawn, too
  };
  /// Errors ("engine"): a model that continues no text, a cache that holds no block, a limit that is negative.
  /// With `alone` ("generate"): a model that generates no text, guesses, a draft model, a cache of another dtype.
  Engine(distributed::DistributedModel& model, const EngineOptions& options);

  /// Adds a request and returns its id, counted from 0. `on_event` hears its events; empty: no function does.
  /// The event of an end token names that token. A step may have several events of one request, with draft tokens.
  /// Errors ("engine"; with `alone` "generate"): ids outside the vocabulary, an empty prompt, a prompt longer than the
  ///         model's positions or most_length, more tokens than the cache holds, more sinks than half of a text, a
  ///         queue that is full, an option that the runner does not use, by name. ("sampling"): options that mean
  ///         nothing, a bias of a token outside the vocabulary.
  int64_t add(Request request, OnEvent on_event = {});
  /// Ends a request. Its blocks are free at once, and events that were not delivered yet are discarded. The next step()
  /// delivers an event of Ended::Cancelled. Errors ("engine"): an unknown id, a request whose last event was delivered.
  void cancel(int64_t id);
  /// Ends a request without an event, if it has not ended, and discards the events that were not delivered yet.
  void drop(int64_t id);
  /// Runs a step of all requests and delivers their events. An error of a request's constraint or sampler ends that
  /// request alone, with Ended::Failed.
  /// Errors: those of the model's passes and of the functions that hear events. ("engine"): a call from such a
  ///         function.
  void step();
  bool has_work() const { return scheduler_.has_work() || !kept_.empty() || !ready_.empty(); }

  const Guesses& guesses() const { return guesses_; }
  const Scheduler::Counts& counts() const { return scheduler_.counts(); }
  /// Blocks of the cache; 1 with `alone`.
  int64_t blocks() const { return scheduler_.pool().blocks(); }

 private:
  struct Running {
    Request request;
    Sampler sampler;
    int64_t most_new;  // as positions allow
    int64_t longest;   // text that can be read
    std::optional<NgramLookup> lookup{};
    int64_t made = 0;
    std::deque<DraftedToken> expected{};     // next; a token of -1: none, a token as without a draft
    std::vector<LogProbabilities> scores{};  // of the prompt's tokens that were computed
  };
  void check(const Request& request) const;
  void run_step();
  void deliver();
  void forget(int64_t id);
  int64_t draw(Running& running, const at::Tensor& logits);
  Event advance(int64_t id, const at::Tensor& logits);
  Event fail(int64_t id, const std::exception& error);
  void end(int64_t id);
  void advance_all(const Scheduler::Run& run, const at::Tensor& logits);
  void score(const Scheduler::Run& run, const at::Tensor& logits);
  void expect(int64_t id, std::deque<DraftedToken> tokens);
  int64_t most_guesses_of(int64_t id) const;
  void look_up(int64_t id);
  void shorten(int64_t id);
  void write_drafts();

  EngineOptions options_;
  std::unique_ptr<Runner> runner_;
  Scheduler scheduler_;
  std::optional<DraftModel> drafts_;
  Guesses guesses_;
  std::map<int64_t, Running> running_;
  std::map<int64_t, std::shared_ptr<const OnEvent>> callers_;  // of requests whose last event was not delivered
  std::deque<Event> ready_;                                    // of steps that have run, next to be delivered
  std::vector<Event> kept_;                                    // ends without a step, for the next step()
  bool delivers_ = false;
  int64_t next_id_ = 0;
};

}  // namespace colossal::infer
