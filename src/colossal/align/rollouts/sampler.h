// Draws answers from a model in training, between two steps.
//
//   align::Sampler sampler(*engine, {.max_tokens = 12, .answers = 8, .end_ids = ends, .seed = 7});
//   for (const align::DrawnAnswer& answer : sampler.draw(step, {{.number = 0, .ids = prompt}})) ...
//   engine->train_step(...), engine->step();         // the next draw() has the new weights
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/infer/request.h"
#include "colossal/train/engine.h"

namespace colossal::align {

struct SamplerOptions {
  int64_t max_tokens = 0;                  ///< maximum number of tokens of an answer; at least 1
  int64_t answers = 1;                     ///< number of answers to each prompt
  double temperature = 1;                  ///< above 0
  std::vector<int64_t> end_ids{};          ///< tokens that end an answer and are its last token
  int64_t cache_bytes = int64_t{1} << 30;  ///< bytes of keys and values per rank
  int64_t block_tokens = 64;               ///< infer::EngineOptions::block_tokens
  int64_t seed = 0;
};

struct Prompt {
  int64_t number;            ///< chooses the random numbers, such as the index in the data; the same in every layout
  std::vector<int64_t> ids;  ///< at least one token
};

struct DrawnAnswer {
  int64_t prompt, number;  ///< Prompt::number; which of the answers to it
  /// Tokens that were drawn, with the end token if one was drawn.
  std::vector<int64_t> ids{};
  /// Log-probability of each token in the distribution that it was drawn from: softmax(logits / temperature).
  std::vector<double> log_probabilities{};
  infer::FinishReason finish_reason = infer::FinishReason::None;  ///< AtEnd, AtLength or AtPositions
};

/// Draws answers from a model of an engine by infer::Engine, over the parameters that train.
///
/// Draws:         a function of (seed, step, Prompt::number, DrawnAnswer::number), the prompt and the weights. With
///                panels (train::NamedModel::panels) on the CPU in fp32 or bf16 they do not depend on the other
///                prompts, on the cache or on the order of work; otherwise the last bits of logits may.
/// Probabilities: with WeightPacking::in_training those of a training pass over the same tokens, to the bit, where
///                passes are canonical (nn/canonical.h).
/// Layouts:       those of infer::ModelRunner. Ranks with the same rows of a batch, and ranks of parallel.expert, must
///                be given the same prompts; other replicas have prompts of their own, also in different numbers.
/// Memory:        keys and values exist during draw() alone. So do panels, unless they are also used in training.
/// Communication: the passes of the model. If replicas shard parameters (ZeRO 3), draw() is collective among all ranks,
///                with one all_reduce of [1] per step: ranks without work run a token of their own.
/// Errors ("rollout"): options out of range. Those of infer::Engine::add(), such as a prompt that is too long.
class Sampler {
 public:
  /// `engine` must outlive the sampler. `model` is the name of one of its models.
  Sampler(train::Engine& engine, SamplerOptions options, std::string model = "");

  /// Returns the answers to all prompts, in the order of the prompts and of their numbers.
  std::vector<DrawnAnswer> draw(int64_t step, const std::vector<Prompt>& prompts);

 private:
  train::Engine& engine_;
  SamplerOptions options_;
  std::string model_;
};

}  // namespace colossal::align
