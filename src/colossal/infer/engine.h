// Many requests at once through one model: what each is answered does not depend on the others.
//
//   infer::Engine engine(*saved.model, {.cache_bytes = int64_t{1} << 30});
//   const int64_t id = engine.add({.prompt = ids, .max_tokens = 200, .end_ids = {tokenizer.end_id()}});
//   while (engine.has_work())
//     for (const infer::Engine::Event& event : engine.step()) ...   // event.id, event.token, event.ended
//
// Packed batches [1, T] of unequal sequences go through the model as training knows it, with a paged cache
// (nn/paged_cache.h) whose blocks a Scheduler deals out.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/ngram_lookup.h"
#include "colossal/infer/request.h"
#include "colossal/infer/scheduler.h"
#include "colossal/nn/paged_cache.h"
#include "colossal/run/streamed_weights.h"

namespace colossal::infer {

struct EngineOptions {
  int64_t cache_bytes = int64_t{1} << 30;   ///< of keys and values on a rank
  int64_t block_tokens = 64;                ///< that a rank has of a block: a multiple of ops::kPageUnit
  int64_t step_tokens = 512;                ///< of all requests in a step, at most
  int64_t most_running = 256;               ///< requests that have blocks at a time
  bool keeps_prefixes = true;               ///< what requests begin with alike is computed once
  int64_t guesses = 0;                      ///< of a request's tokens in a step, at most (ngram_lookup.h); 0: none
  run::StreamedWeights* weights = nullptr;  ///< the model's, where they come and go
};

/// Layouts:       all of them. Those that deal out rows are given copies of the packed row, and each of their parts
///                computes the same. Where parallel.sequence deals out tokens, its ranks share keys and values, a page
///                of each block for each of them; everything else of a step they all compute.
/// Communication: a step is a forward pass of the model (DistributedModel::everywhere), of at most step_tokens tokens;
///                all ranks of a layout must add and cancel the same requests in the same order.
/// Numbers:       with packed weights (nn::PrepackedLayers) and our kernel of attention (ops::has_paged_attention) a
///                request's tokens are the same bits whatever else runs, is preempted or is found in blocks; otherwise
///                products of LibTorch may differ in the last bits.
/// Guesses:       are run behind a request's last token, and each of its tokens is drawn as without them, from logits
///                that its guesses had no part in; the first that is drawn otherwise ends the run. So its tokens are
///                those that it has without guesses, by the same draws.
/// Positions:     those of the model; of one whose rotary frequencies depend on the length of a text those before they
///                do (models::ModelShape::even_positions), so that no request depends on those beside it.
/// Thread safety: none.
class Engine {
 public:
  struct Guesses {
    int64_t proposed = 0, accepted = 0;  ///< tokens that were run before they were drawn; those that were drawn then
  };
  /// Of a token of a request, or of its end; with guesses a step may have several of one request.
  struct Event {
    int64_t id;
    int64_t token;  ///< -1: none, the request ended
    Ended ended;
    std::optional<LogProbabilities> log_probabilities{};  ///< of a token, where the request asks for them
  };

  /// Errors ("engine"): a model that continues no text, a cache that holds no block.
  Engine(distributed::DistributedModel& model, const EngineOptions& options);

  /// Returns its id, counted from 0. Errors ("engine"): ids outside the vocabulary, an empty prompt, one longer than
  ///                                   the model's positions, more tokens than the cache holds. ("sampling"): options,
  ///                                   a bias of a token outside the vocabulary.
  int64_t add(const Request& request);
  /// Its blocks are free at once; an event says so with the next step. Errors ("engine"): an unknown id.
  void cancel(int64_t id);
  /// Runs what the scheduler says; events in the order of requests, of one in that of its tokens.
  /// Errors: those of StreamedWeights::end_pass().
  std::vector<Event> step();
  bool has_work() const { return scheduler_.has_work() || !ended_.empty(); }

  const Guesses& guesses() const { return guesses_; }
  const Scheduler::Counts& counts() const { return scheduler_.counts(); }
  int64_t blocks() const { return scheduler_.pool().blocks(); }

 private:
  struct Running {
    Request request;
    Sampler sampler;
    int64_t most_new;  // as positions allow
    std::optional<NgramLookup> lookup{};
    int64_t made = 0;
  };
  at::Tensor logits_of(const std::vector<Scheduler::Run>& step);
  Event advance(int64_t id, const at::Tensor& logits);
  void advance_all(const Scheduler::Run& run, const at::Tensor& logits, std::vector<Event>& events);
  void guess(int64_t id);

  distributed::DistributedModel& model_;
  Scheduler scheduler_;
  std::unique_ptr<nn::PagedCache> cache_;
  run::StreamedWeights* weights_;
  int64_t most_guesses_;
  Guesses guesses_;
  std::map<int64_t, Running> running_;
  std::vector<Event> ended_;  // cancelled, or of no new tokens: not yet told
  int64_t next_id_ = 0;
};

}  // namespace colossal::infer
