// Runs many requests at once through one model. The completion of a request does not depend on the other requests.
//
//   infer::Engine engine(*saved.model, {.cache_bytes = int64_t{1} << 30});
//   engine.add({.prompt = ids, .end_ids = saved.end_ids, .options = {.max_tokens = 200}},
//              [&](const infer::Event& event) { if (event.is_answer()) answer.push_back(event.token); });
//   while (engine.has_work()) engine.step();
//
// The engine packs sequences of different lengths into one row [1, T] and runs it through the model that training uses
// (infer/decoding/model_runner.h). A Scheduler assigns the blocks of a paged KV cache (nn/paged_cache.h). With
// EngineOptions::alone requests run one after another (infer/decoding/lone_runner.h). Both modes use the same sampler,
// constraints, limits and events.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/decoding/draft_model.h"
#include "colossal/infer/decoding/multi_token_drafts.h"
#include "colossal/infer/decoding/ngram_lookup.h"
#include "colossal/infer/decoding/scheduler.h"
#include "colossal/infer/decoding/step_runner.h"
#include "colossal/infer/embeddings/pooling.h"
#include "colossal/infer/request.h"

namespace colossal::infer {

struct Admission;  // infer/admission.h

struct EngineOptions {
  int64_t cache_bytes = int64_t{1} << 30;  ///< bytes of keys and values per rank
  /// Element type of the KV cache: kChar or kFloat8_e4m3fn, 8-bit quantized values with scales
  /// (ops/products/row_codes.h); none = the model's dtype.
  std::optional<at::ScalarType> cache_dtype{};
  int64_t block_tokens = 64;  ///< tokens that a rank stores of a block; a multiple of ops::kPageUnit
  /// Maximum number of tokens per step, over all requests. A chunk of a prompt has at most half of them.
  int64_t step_tokens = 512;
  /// Maximum number of requests that hold cache blocks. At most step_tokens minus a chunk of 64 tokens, so that each
  /// step advances all of them and reads a chunk of a prompt.
  int64_t max_running = 256;
  int64_t max_waiting = 0;     ///< maximum number of requests that wait for their first step; 0 = no limit
  int64_t max_length = 0;      ///< maximum tokens of a sequence that the model reads; 0 = positions and cache limit it
  bool keeps_prefixes = true;  ///< reuses the cached blocks of a prefix that requests share
  int64_t draft_tokens = 0;    ///< maximum number of draft tokens of a request per step; 0 = off
  /// Draft model: a smaller model with the same vocabulary and layout (infer/decoding/draft_model.h). Its cache has
  /// room for as many tokens as the model's, and both share cache_bytes. Null = draft tokens come from the model's
  /// multi-token layers (infer/decoding/multi_token_drafts.h), or from prompt lookup if it has none
  /// (infer/decoding/ngram_lookup.h).
  distributed::DistributedModel* draft = nullptr;
  /// Names of the adapters that the model has in addition to its weights (run::Loading::named_adapters), in the order
  /// in which it has them: a request chooses one by Request::adapter. Draft models and multi-token layers write drafts
  /// for all requests as for the base, so fewer of these drafts are accepted.
  std::vector<std::string> adapters{};
  /// Runs requests one at a time, each with a cache of its own size (LoneRunner). This mode serves models with an
  /// encoder, prompts that ranks of parallel.sequence split, and accelerators. The constructor then refuses draft
  /// tokens, a draft model and a cache_dtype. The other options of the cache and of steps have no effect.
  bool alone = false;
};

/// Generates tokens for many requests, step by step.
///
/// Layouts, communication: the same as ModelRunner with at most step_tokens tokens per step, or as LoneRunner. All
///                         ranks of a layout must add and cancel the same requests in the same order.
/// Numerics:      with packed weights (nn::PackedWeights) and our attention kernel (ops::has_paged_attention) a
///                request gets bitwise the same tokens for any other requests, preemptions and cached blocks. Without
///                them, LibTorch's matrix products may differ in the last bits.
/// Adapters:      requests with different adapters share steps (nn::TokenAdapters). The numerics above hold for any
///                adapters of the others, and a request without one gets the bits of a model without adapters. Cached
///                blocks belong to one adapter. With `alone`, too, each request has its own.
/// Draft tokens:  the model evaluates them after the last token of a request, in the same step. The engine accepts them
///                up to the first one that the sampler does not draw. Draft tokens of lookup and of multi-token layers,
///                and all draft tokens at temperature 0, leave the completion unchanged. The same draw chooses each
///                token, from logits that no rejected draft token affects. Sampler::judge() accepts or rejects sampled
///                tokens of a draft model: the distribution of the completion stays the same, but the draws differ. The
///                completion is then a function of the request, both models and `draft_tokens`, for any room in a step.
/// Scores:        log-probabilities of prompt tokens (GenerationOptions::prompt_logprobs) have the bits of the logits
///                above, for any Request::scored_from. The logits of a step exist only for its scored tokens and for
///                the tokens that it generates: at most step_tokens rows of the vocabulary at a time, for any prompt.
/// Positions:     all of the model's. If rotary frequencies depend on the length of a text
///                (models::LongTexts), those of a request follow the number of tokens that it may
///                reach, prompt and max_tokens, from its first token on. So no request depends on other requests, and
///                requests of other reach do not share cached blocks. With `alone` they follow the tokens so far.
/// Order:         the requests of one client (Request::client) start in arrival order, and none overtakes another.
///                Clients take turns by counters of the work done for each (Scheduler). A completion advances in every
///                step. If blocks run out, the client with the largest counter gives up those of the request that
///                started last; that request is the next of its client to start again. With `alone`, requests run in
///                arrival order for any clients.
/// Events:        step() calls the function that was passed with a request for each of its events, after the step has
///                run. Events are ordered by request, and within a request by token. The function may call add(),
///                cancel() and drop(), but not step(). If it throws, step() passes the error on, and the next step()
///                delivers the remaining events.
/// Endless texts: GenerationOptions::attention_sinks sets how many first tokens to keep. After a sequence
///                exceeds positions, cache or max_length, the engine drops tokens after these. It computes the
///                remaining ones again as a new sequence. The completion is then what the model generates for that
///                sequence, for any kind of positions. Cost: about one prompt token per new token.
/// Thread safety: none.
class Engine {
 public:
  struct DraftCounts {
    int64_t proposed = 0, accepted = 0;  ///< draft tokens that the model evaluated; those that it accepted
  };
  struct Load {
    int64_t waiting = 0;      ///< number of requests before their first step, without those with Request::pooling
    int64_t running = 0;      ///< number of such requests after it, including preempted ones
    int64_t blocks_used = 0;  ///< number of blocks that requests hold; a free block that keeps a prefix is not used
  };
  /// `model` and EngineOptions::draft must outlive the engine.
  /// Errors ("engine"): a model that does not predict the next token, a cache too small for one block, a negative
  ///                    limit. Also a draft model without draft_tokens, and block_tokens or a cache_dtype that is not
  ///                    allowed.
  /// With `alone` ("generate"): a model that does not generate text, draft tokens, a draft model, a cache_dtype.
  Engine(distributed::DistributedModel& model, const EngineOptions& options);

  /// Adds a request and returns its id, counted from 0. step() passes the request's events to `on_event`; empty =
  /// events are discarded. The event of an end token has that token. A step may have several events of one request with
  /// draft tokens.
  /// Errors ("engine"; with `alone` "generate"): an empty prompt or ids outside the vocabulary; a prompt longer than
  ///                                             the model's positions or max_length; more tokens than the cache
  ///                                             holds; attention sinks of half the maximum length or more; a full
  ///                                             queue; an option that the runner does not use, with its name; a
  ///                                             pooling if the runner has no hidden states, or Pooling::Pooler;
  ///                                             a Request::after that is the id of no earlier request; a
  ///                                             Request::scored_from outside the prompt; a Request::adapter that
  ///                                             is not one of adapters().
  /// Errors ("sampling"): invalid options, a bias of a token outside the vocabulary.
  int64_t add(Request request, OnEvent on_event = {});
  /// Throws the error that add() would throw for this request now, unless the queue is full.
  void check(const Request& request) const;
  /// Ends a request. Frees its blocks at once and discards its undelivered events. The next step() delivers an event of
  /// FinishReason::Cancelled. Errors ("engine"): an unknown id, a request whose last event was delivered.
  void cancel(int64_t id);
  /// Ends a request without an event, if it has not ended, and discards its undelivered events. Ignores an unknown id.
  void drop(int64_t id);
  /// Runs one step of all requests and delivers their events. An error in a request's constraint or sampler ends only
  /// that request, with FinishReason::Failed.
  /// Errors: errors of the model's forward passes and of the event functions.
  /// Errors ("engine"): a call from inside an event function.
  void step();
  /// Returns true if a step has read tokens of a request that has not ended. Errors ("engine"): an unknown id.
  bool has_begun(int64_t id) const { return scheduler_.has_begun(id); }
  bool has_work() const { return scheduler_.has_work() || !kept_.empty() || !ready_.empty(); }

  const EngineOptions& options() const { return options_; }
  /// Returns the names of the adapters that requests may choose, without the base.
  const std::vector<std::string>& adapters() const { return options_.adapters; }
  const DraftCounts& draft_counts() const { return draft_counts_; }
  const Scheduler::Counts& counts() const { return scheduler_.counts(); }
  /// Returns the load between two steps.
  Load load() const;
  /// Returns the number of blocks in the cache; 1 with `alone`.
  int64_t blocks() const { return scheduler_.pool().blocks(); }
  /// Returns the maximum number of tokens of a sequence that the model reads, without attention_sinks: the positions
  /// that the runner can use (Positions above), EngineOptions::max_length and the cache limit it. A completion may have
  /// one more token, which the model does not read.
  int64_t max_length() const;

 private:
  struct Running {
    Request request;
    Sampler sampler;
    int64_t max_new_tokens;  // maximum number of new tokens, limited by positions
    int64_t longest;         // maximum number of tokens of the sequence that the model can read
    std::optional<NgramLookup> lookup{};
    std::optional<TextPool> pool{};
    int64_t made = 0;
    // Draft tokens expected next. A token of -1 stands for a token that is chosen without a draft.
    std::deque<DraftedToken> expected{};
    std::vector<LogProbabilities> scores{};  // log-probabilities of the prompt tokens computed so far
  };
  /// A token whose log-probability is wanted; `event` is its index in ready_.
  struct Drawn {
    at::Tensor logits;
    int64_t token;
    double temperature;
    size_t event;
  };
  Admission admitted(const Request& request) const;
  void begin(int64_t id, Running running, const Admission& admission);
  int64_t adapter_of(const Request& request) const;
  void run_step();
  void deliver();
  void forget(int64_t id);
  int64_t draw(Running& running, const at::Tensor& logits);
  Event advance(int64_t id, const at::Tensor& logits);
  void score_draws();
  Event fail(int64_t id, const std::exception& error);
  void end(int64_t id);
  std::optional<int64_t> advance_all(const Scheduler::ScheduledTokens& scheduled, const at::Tensor& logits);
  void score(const Scheduler::ScheduledTokens& scheduled, const at::Tensor& logits);
  void end_text(int64_t id);
  void pool(const std::vector<Scheduler::ScheduledTokens>& step);
  void expect(int64_t id, std::deque<DraftedToken> tokens);
  int64_t max_draft_tokens_of(int64_t id) const;
  void look_up(int64_t id);
  bool shorten(int64_t id);
  void write_drafts();
  void write_own_drafts(std::vector<MultiTokenDrafts::Sequence> read);

  EngineOptions options_;
  std::unique_ptr<StepRunner> runner_;
  std::optional<MultiTokenDrafts> own_drafts_;  // drafts of the model's own multi-token layers
  Scheduler scheduler_;
  std::optional<DraftModel> drafts_;
  DraftCounts draft_counts_;
  int64_t words_of_rank_;
  std::vector<Drawn> drawn_;  // of the step that runs
  std::map<int64_t, Running> running_;
  std::map<int64_t, std::shared_ptr<const OnEvent>> callers_;  // by id, of requests whose last event was not delivered
  std::deque<Event> ready_;                                    // events of completed steps, in order of delivery
  std::vector<Event> kept_;  // ends that happened outside a step, delivered by the next step()
  bool delivers_ = false;
  int64_t next_id_ = 0;
};

}  // namespace colossal::infer
