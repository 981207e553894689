// Text from a model, token by token, with a KV cache.
#pragma once
#include <functional>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/sampler.h"
#include "colossal/infer/token_constraint.h"
#include "colossal/run/streamed_weights.h"

namespace colossal::infer {

struct GenerateOptions {
  int64_t max_tokens = 100;
  int64_t end_id = -1;  ///< generation stops after this token; -1: never
  SamplingOptions sampling;
  TokenConstraint* constraint = nullptr;    ///< of the new tokens; null: any
  run::StreamedWeights* weights = nullptr;  ///< the model's, where they come and go
};

/// Continues `prompt` (ids, at least one) and calls `emit` with each new token; stops at max_tokens, at end_id, at the
/// model's last position, or when `emit` returns false. Returns the new tokens, the end token not among them. A model
/// with an encoder (models::Objective::Target) answers: the encoder reads the prompt with end_id behind, once, and what
/// the decoder writes from its start token on is returned.
///
/// Communication: that of the model's forward pass, prompt then one token a pass (DistributedModel::next_logits); all
///                ranks of a layout must call with equal arguments.
/// Errors ("generate"): an empty prompt, one longer than the model's positions, ids outside the vocabulary; before any
///                      communication. And those of StreamedWeights::end_pass().
/// Cost: one pass over the prompt, then one pass over the weights a token. The cache holds prompt + max_tokens;
///       ranks of parallel.sequence share it, and the activations of the prompt.
std::vector<int64_t> generate(distributed::DistributedModel& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int64_t)>& emit = {});

}  // namespace colossal::infer
