// Checks a request of an engine, and decides what the engine will read and generate for it.
//
//   const infer::Admission admitted = infer::admit(request, {*runner, scheduler, options});
//   scheduler.add(id, admitted.text, admitted.read_again,
//                 {.first_scored = admitted.first_scored, .scored = admitted.scored});
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/infer/request.h"

namespace colossal::infer {

struct EngineOptions;  // infer/engine.h
class Scheduler;
class StepRunner;

/// The parts of an engine that limit its requests.
struct AdmissionLimits {
  const StepRunner& runner;
  const Scheduler& scheduler;
  const EngineOptions& options;
};

/// The tokens that an engine reads and generates for a request.
struct Admission {
  std::vector<int64_t> text;  ///< tokens that the model reads before the first new token
  int64_t longest = 0;        ///< maximum number of tokens of the sequence that the model can read
  int64_t max_new_tokens =
      0;                   ///< maximum number of new tokens, limited by positions unless attention_sinks drop tokens
  int64_t room = 0;        ///< maximum number of new tokens before attention_sinks drop some
  int64_t read_again = 0;  ///< maximum number of new tokens that the model reads
  /// Tokens [first_scored, first_scored + scored) of the text whose next token is scored, or whose hidden states are
  /// pooled.
  int64_t first_scored = 0, scored = 0;

  /// Returns false if the request ends without a step.
  bool needs_steps() const { return max_new_tokens > 0 || scored > 0; }
};

/// Decides what an engine does for a request. The last token of a prompt that is only scored is not read, because no
/// token after it is wanted.
/// Errors: those of Engine::add() that depend on the request alone.
Admission admit(const Request& request, const AdmissionLimits& limits);

/// Returns how many tokens after the attention sinks to drop so that a sequence has at most `longest` tokens. It drops
/// multiples of half of the other tokens, so that sequences with equal beginnings stay equal.
int64_t surplus(int64_t length, int64_t longest, int64_t attention_sinks);

/// Returns the component of errors in requests.
const char* component_of(const EngineOptions& options);

}  // namespace colossal::infer
