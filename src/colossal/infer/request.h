// What somebody asks of a model, and what becomes of it.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "colossal/infer/sampler.h"
#include "colossal/infer/token_constraint.h"

namespace colossal::infer {

struct Request {
  std::vector<int64_t> prompt;     ///< ids, at least one
  int64_t max_tokens = 100;        ///< new ones at most
  std::vector<int64_t> end_ids{};  ///< any of which ends the text, and is no part of it
  SamplingOptions sampling{};
  int64_t log_probabilities = -1;  ///< told with each token: its own, and the so many best; -1: none
  /// If at least 0, the first token's event reports the log-probabilities of the prompt's tokens, each with those of
  /// the N most probable; -1 = off. Not together with sinks. The prompt is then computed whole: blocks of earlier
  /// requests that begin alike are not reused.
  int64_t prompt_log_probabilities = -1;
  /// Of a text that is longer than the engine's longest, the first so many tokens stay (attention sinks) and the newest
  /// ones, about half of the others, and it goes on without an end; -1: it ends there
  int64_t sinks = -1;
  std::shared_ptr<TokenConstraint> constraint{};  ///< of this request alone; null: any token
};

/// Of a token that was drawn, as the model gives them: whatever temperature, penalties and filters it was drawn with.
/// Natural logarithms, in fp64 of the logits.
struct LogProbabilities {
  double own;
  std::vector<std::pair<int64_t, double>> best;  ///< ids, the most probable first; of equal ones the lower id
};
/// Of `token` by logits [V]. Cost: the host waits for the device.
LogProbabilities log_probabilities(const at::Tensor& logits, int64_t token, int64_t best);

enum class Ended {
  No,
  AtEnd,        ///< with an end id
  AtLength,     ///< after max_tokens
  AtPositions,  ///< at the model's last position, or the engine's (EngineOptions::most_length)
  AtStop,       ///< with a stop string, as whoever reads the text finds (answer_stream.h)
  Cancelled,
  Failed,  ///< its constraint threw (Engine::Event::error)
};

}  // namespace colossal::infer
