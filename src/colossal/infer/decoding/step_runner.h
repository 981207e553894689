// A step runner computes the steps of an engine.
//
//   const std::vector<Scheduler::ScheduledTokens> step = scheduler.next();
//   const at::Tensor logits = runner.logits(scheduler, step);   // a row for each place where a token is wanted
//
// ModelRunner runs packed rows of many requests over a paged cache. LoneRunner runs one request at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/infer/decoding/scheduler.h"
#include "colossal/infer/request.h"
#include "colossal/models/shape.h"
#include "colossal/nn/token_adapters.h"

namespace colossal::infer {

/// Interface of the ways to compute a step.
///
/// Communication: logits() sends what the model's forward pass sends. All ranks of a layout must call it for the same
///                steps.
/// Thread safety: none.
class StepRunner {
 public:
  virtual ~StepRunner() = default;

  virtual const models::ModelShape& shape() const = 0;
  /// Returns the maximum number of tokens of a sequence that it can read.
  virtual int64_t longest() const = 0;
  /// Returns the tokens that the model reads before the first new token.
  virtual std::vector<int64_t> text_of(const Request& request) const { return request.prompt; }
  /// Returns the options that the runner does not use, by their names in JSON. name() is the runner's name in messages.
  virtual std::vector<std::string> unused() const = 0;
  virtual std::string name() const = 0;

  /// Returns the key under which blocks of a request are cached. It differs from Request::cache_key if keys of the same
  /// tokens may differ: they are functions of the number of tokens that the request may reach, too.
  virtual std::string cache_key(const Request& request, [[maybe_unused]] int64_t text_tokens,
                                [[maybe_unused]] int64_t max_new_tokens) const {
    return request.cache_key;
  }
  /// Returns true if layers of the model remember the last tokens of a sequence (nn/token_memory.h). A sequence must
  /// then be read from its start, so it begins with no cached blocks of another, and no tokens of it may be cut out.
  virtual bool remembers_tokens() const { return false; }
  /// Announces a request of the scheduler that reads `text` and generates at most `max_new_tokens` tokens, with the
  /// adapter of that number (nn::AdaptersOfTokens). Sequences that are not announced use the base.
  virtual void begin(int64_t id, const std::vector<int64_t>& text, int64_t max_new_tokens,
                     int64_t adapter = nn::kBase) = 0;
  /// Ends a request and frees what the runner holds for it. The request may have had no step.
  virtual void end(int64_t id) = 0;

  /// Returns logits [n, V]. Each entry of `step` has one row per scored token. If a token is wanted after it, it also
  /// has a row for that token and one for each proposed token. Entries with is_pooled have no rows.
  virtual at::Tensor logits(const Scheduler& scheduler, const std::vector<Scheduler::ScheduledTokens>& step) = 0;

  /// Returns true if states() works with this runner and the layout of its model.
  virtual bool has_states() const { return false; }
  /// Returns the hidden states [n, H] after the last norm: those of the scored tokens of the last step's entries with
  /// is_pooled, in order. All ranks must call it after the same steps. Communication: a pipeline sends the states.
  virtual at::Tensor states() { return {}; }
};

}  // namespace colossal::infer
