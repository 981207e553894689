// Scores texts with a reward model, many at once.
//
//   infer::TextScorer scorer(*saved.model, {});
//   const std::vector<float> scores = scorer.score({chosen, rejected});        // token ids of two texts
//   const bool prefers_first = scores[0] > scores[1];
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/engine.h"

namespace colossal::infer {

/// Scores texts with requests of an engine of its own: the output of the model at the last token of each text.
///
/// Numerics:      the score is computed in fp32. With packed weights and our attention kernel it has bitwise the same
///                value beside any other texts, as in Engine.
/// Layouts:       those whose ranks hold whole hidden states: tensor 1d, pipeline, expert.
/// Communication: that of the engine's steps. All ranks of a layout must make the same calls.
/// Thread safety: none.
class TextScorer {
 public:
  /// `model` must outlive the scorer. Errors ("score"): a model without one output per token
  /// (models::ModelShape::outputs); another layout. Errors of Engine.
  TextScorer(distributed::DistributedModel& model, const EngineOptions& options);
  /// Returns the score of each text, in the order of `texts` (token ids). Errors: those of check(), with the index of
  /// the text, before the first step; errors of the steps.
  std::vector<float> score(const std::vector<std::vector<int64_t>>& texts);
  /// Errors: a text without tokens, with more tokens than the model's positions or the cache have room for, or with ids
  /// outside the vocabulary.
  void check(const std::vector<int64_t>& text) const;

 private:
  Engine engine_;
};

}  // namespace colossal::infer
