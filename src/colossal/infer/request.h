// A request to a model, and the events that answer it.
//
//   engine.add({.prompt = ids, .end_ids = end_ids, .options = {.max_tokens = 20}}, [&](const infer::Event& event) {
//     if (event.is_answer()) answer.push_back(event.token);
//   });
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/infer/generation_options.h"
#include "colossal/infer/token_constraint.h"

namespace colossal::infer {

struct Request {
  std::vector<int64_t> prompt;     ///< ids, at least one
  std::vector<int64_t> end_ids{};  ///< tokens that end the answer and are no part of it
  GenerationOptions options{};
  std::shared_ptr<TokenConstraint> constraint{};  ///< of this request alone; null: any token may follow
  /// For a model with an encoder: the token that the encoder reads after the prompt, unless the prompt ends with it.
  /// -1 = none.
  int64_t prompt_end = -1;
};

/// Natural logarithms of probabilities of one token, computed in fp64 from the model's logits: temperature, penalties
/// and filters do not change them.
struct LogProbabilities {
  double own;
  std::vector<std::pair<int64_t, double>> best;  ///< ids, the most probable first; of equal ones the lower id
};
/// Returns the log-probabilities of `token` and of the `best` most probable tokens by logits [V].
/// Cost: the host waits for the device.
LogProbabilities log_probabilities(const at::Tensor& logits, int64_t token, int64_t best);

/// How an answer ended.
enum class Ended {
  No,
  AtEnd,        ///< with one of Request::end_ids
  AtLength,     ///< after GenerationOptions::max_tokens
  AtPositions,  ///< at the model's last position, or the engine's (EngineOptions::most_length)
  AtStop,       ///< with a stop string, which the caller finds in the text (answer_stream.h)
  Cancelled,    ///< by Engine::cancel()
  Failed,       ///< an error of its constraint or sampler (Event::error)
};

/// A token of a request, or its end.
struct Event {
  int64_t id;                                           ///< of the request
  int64_t token;                                        ///< -1: the request ended without one
  Ended ended = Ended::No;                              ///< the last event of a request has another value
  std::string error{};                                  ///< the reason of Ended::Failed
  std::optional<LogProbabilities> log_probabilities{};  ///< of `token`, if the request asks for them
  /// Log-probabilities of the prompt's second to last token, in the first event of a request that asks for them.
  std::vector<LogProbabilities> prompt_log_probabilities{};

  /// Returns true if `token` is a part of the answer: it is there, and it is no end token.
  bool is_answer() const { return token >= 0 && ended != Ended::AtEnd; }
};

using OnEvent = std::function<void(const Event&)>;

}  // namespace colossal::infer
