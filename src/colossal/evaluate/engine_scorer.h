// Scores and answers by the model of an engine.
//
//   evaluate::EngineScorer scorer(*saved.model, {}, *saved.tokenizer, saved.end_ids, "fp32");
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/evaluate/scorer.h"
#include "colossal/infer/engine.h"
#include "colossal/text/tokenizer.h"

namespace colossal::evaluate {

/// Scores with infer::answer_scores() and answers with requests of an engine of its own.
///
/// Numerics:      those of Engine. With packed weights and our attention kernel a score has bitwise the same value
///                with any other requests in the step.
/// Communication: that of Engine. All ranks of a layout must make the same calls.
/// Errors ("evaluate"): a request that failed. Errors of Engine::add() and Engine::step().
class EngineScorer final : public Scorer {
 public:
  /// `model` and `tokenizer` must outlive the scorer. `end_ids` end answers, and `dtype` is the name of the model's
  /// dtype. Errors: those of Engine.
  EngineScorer(distributed::DistributedModel& model, const infer::EngineOptions& options,
               const text::Tokenizer& tokenizer, std::vector<int64_t> end_ids, std::string dtype);
  std::vector<Score> score(const std::vector<Pair>& pairs) override;
  std::vector<std::string> generate(const std::vector<Prompt>& prompts) override;
  int64_t max_length() const override { return engine_.max_length(); }
  std::string dtype() const override { return dtype_; }

 private:
  infer::Engine engine_;
  const text::Tokenizer& tokenizer_;
  std::vector<int64_t> end_ids_;
  std::string dtype_;
};

}  // namespace colossal::evaluate
