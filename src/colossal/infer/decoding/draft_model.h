// A draft model proposes the next tokens of sequences for speculative decoding. It is a smaller model with the same
// vocabulary. It generates a few tokens of each sequence one by one, and the target model evaluates them all in one
// step.
//
//   infer::DraftModel drafts(small, vocabulary, {.cache = {.blocks = 256, .block_tokens = 64}, .max_draft_tokens = 4});
//   auto drafted = drafts.write({{.id = 0, .tokens = text, .max_draft_tokens = 4, .sampler = sampler.for_draft()}});
//   ...                                          // Sampler::judge() of each token of drafted[0]
//   drafts.forget(0); // the text has come to its end
//
// See: Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/decoding/model_runner.h"
#include "colossal/infer/decoding/sampler.h"
#include "colossal/infer/decoding/scheduler.h"
#include "colossal/infer/decoding/token_constraint.h"

namespace colossal::infer {

/// Generates draft tokens with a smaller model.
///
/// Layouts, numerics: the same as ModelRunner. With packed weights the draft of a sequence does not depend on the other
///                    sequences.
/// Communication: one forward pass per draft token for all sequences together, plus the passes that read tokens which
///                the draft model has not seen.
/// Thread safety: none.
class DraftModel {
 public:
  struct Options {
    ModelRunner::Cache cache;      ///< KV cache of the draft model alone
    int64_t step_tokens = 512;     ///< maximum number of tokens per pass
    int64_t max_draft_tokens = 4;  ///< maximum number of draft tokens per sequence and call
  };
  /// A request for the draft of one sequence.
  struct DraftRequest {
    int64_t id;
    std::vector<int64_t> tokens;  ///< sequence so far
    int64_t max_draft_tokens;     ///< number of draft tokens wanted, at most Options::max_draft_tokens
    Sampler sampler;              ///< result of Sampler::for_draft()
    std::shared_ptr<TokenConstraint> constraint{};  ///< copy of the sequence's own constraint; null = none
    std::vector<int64_t> end_ids{};                 ///< tokens that end a draft
  };

  /// `model` must outlive it. `vocabulary` is the size of the target model's vocabulary: tokens beyond it are never
  /// drafted.
  /// Errors ("engine"): a model that does not predict the next token. Errors ("cache"): a cache without blocks.
  DraftModel(distributed::DistributedModel& model, int64_t vocabulary, const Options& options);

  /// Returns a draft for each request, in the same order. A draft is empty if the sequence does not fit the draft
  /// model's positions or cache, or has tokens outside its vocabulary.
  /// Errors ("engine"): the cache has no room for any sequence that still needs draft tokens. Errors of the model's
  /// passes. An error of a constraint only ends its draft.
  std::vector<std::vector<DraftedToken>> write(std::vector<DraftRequest> requests);
  /// Frees the cache blocks of a sequence. Has no effect on an unknown id.
  void forget(int64_t id);

 private:
  bool fits(const DraftRequest& request) const;
  void follow(const DraftRequest& request);
  bool make_room(std::set<int64_t> needed, const std::vector<Scheduler::ScheduledTokens>& step);

  int64_t vocabulary_;
  Options options_;
  Scheduler scheduler_;
  ModelRunner runner_;
  std::set<int64_t> known_;  // ids of the sequences in the scheduler
};

}  // namespace colossal::infer
