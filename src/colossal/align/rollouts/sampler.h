// Draws answers from a model in training, between two steps.
//
//   align::Sampler sampler(*engine, {.max_tokens = 12, .end_ids = ends, .seed = 7});
//   std::vector<align::Draw> draws;
//   for (int64_t number = 0; number < 8; ++number)
//     if (!stored.answer(prompt.index, number)) draws.push_back({&prompt, number});
//   sampler.draw(step, draws, [&](align::RolloutAnswer answer) { stored.add(std::move(answer)); });
//   engine->train_step(...), engine->step();         // the next draw() has the new weights
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/align/rollouts/rollout_record.h"
#include "colossal/train/engine.h"

namespace colossal::align {

struct SamplerOptions {
  int64_t max_tokens = 0;                  ///< maximum number of tokens of an answer; at least 1
  double temperature = 1;                  ///< above 0
  std::vector<int64_t> end_ids{};          ///< tokens that end an answer and are its last token
  int64_t cache_bytes = int64_t{1} << 30;  ///< bytes of keys and values per rank
  int64_t block_tokens = 64;               ///< infer::EngineOptions::block_tokens
  int64_t seed = 0;
};

/// An answer that is to be drawn.
struct Draw {
  const RolloutPrompt* prompt;  ///< must outlive the draw
  int64_t number = 0;           ///< RolloutAnswer::number
};

/// Draws answers from a model of an engine by infer::Engine, over the parameters that train.
///
/// Draws:         a function of (seed, step, RolloutPrompt::index, Draw::number), the prompt's ids and the weights.
///                With panels (train::NamedModel::panels) on the CPU in fp32 or bf16 they do not depend on the other
///                draws, on the cache or on the order of work; otherwise the last bits of logits may.
/// Probabilities: with WeightPacking::in_training those of a training pass over the same tokens, to the bit, where
///                passes are canonical (nn/canonical.h).
/// Layouts:       those of infer::ModelRunner. Ranks with the same rows of a batch, and ranks of parallel.expert, must
///                be given the same draws in the same order; other replicas have draws of their own, also in different
///                numbers.
/// Memory:        keys and values exist during draw() alone. So do panels, unless they are also used in training.
/// Cost:          the first draws of all prompts are read in the first steps. The others of a prompt that fills a block
///                of the cache wait for it, and read the rest of the prompt alone.
/// Communication: draw() is collective among all ranks: two all_reduces of 8 bytes, and the passes of the model. If
///                replicas shard parameters (ZeRO 3), also an all_reduce of [1] per step: ranks without work run a
///                token of their own.
/// Errors ("rollout"): options out of range.
class Sampler {
 public:
  /// `engine` must outlive the sampler. `model` is the name of one of its models.
  Sampler(train::Engine& engine, SamplerOptions options, std::string model = "");

  /// Draws answers, and passes each to `done` when it is complete, in any order, on every rank that was given its draw.
  /// RolloutAnswer::version is train::Engine::steps_done(). Calls `idle`, if there is one, after each step of the
  /// infer::Engine, so that the caller can work on what is complete. Neither function may communicate.
  /// Errors: before any draw those of infer::Engine and its add(), such as a prompt that is too long. After all draws
  ///         the first one of `done`, of `idle`, which is not called again after an error, or of an answer that cannot
  ///         be drawn ("rollout"). Every rank throws the error of the lowest rank that failed (comm::agree()).
  void draw(int64_t step, const std::vector<Draw>& draws, const std::function<void(RolloutAnswer)>& done,
            const std::function<void()>& idle = {});

 private:
  train::Engine& engine_;
  SamplerOptions options_;
  std::string model_;
};

}  // namespace colossal::align
