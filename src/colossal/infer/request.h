// A request to a model, and the events that report its completion.
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

#include "colossal/infer/decoding/token_constraint.h"
#include "colossal/infer/generation_options.h"

namespace colossal::infer {

enum class Pooling;  // infer/embeddings/pooling.h

struct Request {
  std::vector<int64_t> prompt;     ///< token ids, at least one
  std::vector<int64_t> end_ids{};  ///< tokens that end the completion and are not part of it
  GenerationOptions options{};
  /// Name of the adapter whose model completes the prompt: one of EngineOptions::adapters; empty = the base
  std::string adapter{};
  std::shared_ptr<TokenConstraint> constraint{};  ///< used by this request only; null = any token may follow
  /// For a model with an encoder: the token that the encoder reads after the prompt, unless the prompt ends with it. -1
  /// = none.
  int64_t prompt_end = -1;
  /// Name of the client that sends the request, such as the number of an API key or a remote address. Clients take
  /// turns in the use of steps and cache (infer/decoding/scheduler.h). The requests of one client start in arrival
  /// order. All requests with an empty name are of one client.
  std::string client{};
  /// Cached prefixes are found only by requests with the same key and adapter as the request that computed them. So
  /// with a key per client, no client learns from the time of an answer what another one asked.
  std::string cache_key{};
  /// For several completions of one prompt: the id of the first of these requests; -1 = none. This request starts after
  /// that one has read the prompt, or has ended, and finds the prompt's full blocks in the cache. So they are computed
  /// once, if both have the same prompt, cache_key and adapter and EngineOptions::keeps_prefixes is on.
  int64_t after = -1;
  /// If set, the request wants one vector of its prompt instead of a completion: the end of the model, combined in this
  /// way (Event::vector). That is the hidden states after the last norm, or the outputs of a model that has some
  /// (models::ModelShape::outputs). Its prompt is read in chunks like any other, and finds no cached prefix.
  /// Options, end_ids and constraint have no effect. It must not be Pooling::Pooler.
  std::optional<Pooling> pooling{};
  bool normalizes = false;  ///< scales the vector to length 1
  /// Index of the first token of the prompt whose log-probability is wanted, with GenerationOptions::prompt_logprobs: 1
  /// = all that have a token before them. Cached blocks of the tokens before token scored_from - 1 are reused.
  int64_t scored_from = 1;
  /// Ids whose log-probabilities are wanted in place of token scored_from, too, with
  /// GenerationOptions::prompt_logprobs: LogProbabilities::alternatives of the first score. So answers of one token
  /// share one reading of their prompt.
  std::vector<int64_t> alternatives{};
  /// Reports Event::drawn_log_probability of each new token.
  bool scores_draws = false;
};

/// Log-probabilities (natural logarithm) at one position, computed in fp64 from the model's logits. Temperature,
/// penalties and filters do not change them.
struct LogProbabilities {
  double own;
  std::vector<std::pair<int64_t, double>> best;  ///< ids, the most probable first; of equal ones the lower id
  std::vector<double> alternatives{};            ///< of Request::alternatives, in their order
};
/// Returns the log-probabilities of `token`, of the `best` most probable tokens and of `alternatives` from logits [V].
/// Cost: the host waits for the device.
LogProbabilities log_probabilities(const at::Tensor& logits, int64_t token, int64_t best,
                                   const std::vector<int64_t>& alternatives = {});

/// Reason why a completion ended.
enum class FinishReason {
  None,         ///< the completion goes on
  AtEnd,        ///< one of Request::end_ids
  AtLength,     ///< GenerationOptions::max_tokens tokens
  AtPositions,  ///< the model's last position or EngineOptions::max_length
  AtStop,       ///< a stop string, which the caller finds in the text (infer/prompts/answer_stream.h)
  Cancelled,    ///< a call of Engine::cancel()
  Failed,       ///< an error of the request's constraint or sampler (Event::error)
  EngineEnded   ///< an error of weights or ranks, which ended all requests (Event::error). Engine::step() throws it;
                ///< callers that pass it on as events use this value
};

/// One new token of a request, or the end of the request.
struct Event {
  int64_t id;                                       ///< id of the request
  int64_t token;                                    ///< new token; -1 = the request ended without one
  FinishReason finish_reason = FinishReason::None;  ///< FinishReason::None for all events of a request but the last
  std::string error{};                              ///< message for FinishReason::Failed and FinishReason::EngineEnded
  std::optional<LogProbabilities> log_probabilities{};  ///< for `token`, if GenerationOptions::logprobs is on
  /// Log-probabilities of the prompt's tokens from Request::scored_from to the last one. They are in the first event of
  /// a request with GenerationOptions::prompt_logprobs.
  std::vector<LogProbabilities> prompt_log_probabilities{};
  /// Vector of a request with Request::pooling, in its only event, which has FinishReason::AtLength and no token.
  std::vector<float> vector{};
  int64_t found = 0;  ///< number of prompt tokens that were found in cached blocks when the request started
  /// With Request::scores_draws: log-probability of `token` in softmax(logits / temperature), the distribution from
  /// which it was drawn if no filter, penalty, bias or constraint changed it; at temperature 0 in softmax(logits). It
  /// is computed in fp32 (fp64 for fp64 models) by ops::logit_scores(), so a canonical pass of a trainer over the same
  /// tokens has the same bits (nn/canonical.h).
  std::optional<double> drawn_log_probability{};

  /// Returns true if `token` is part of the completion: there is a token, and it is not an end token.
  bool is_answer() const { return token >= 0 && finish_reason != FinishReason::AtEnd; }
};

using OnEvent = std::function<void(const Event&)>;

}  // namespace colossal::infer
