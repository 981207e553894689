// What texts may go on with, as a smaller model of the same vocabulary says: it writes a few tokens of each, one after
// another, and the model that is asked reads them all in one step.
//
//   infer::DraftModel drafts(small, vocabulary, {.cache = {.blocks = 256, .block_tokens = 64}, .most = 4});
//   const auto drafted = drafts.write({{.id = 0, .tokens = text, .most = 4, .sampler = sampler.for_draft()}});
//   ...                                          // Sampler::judge() of each token of drafted[0]
//   drafts.forget(0);                            // the text has come to its end
//
// See: Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318.
#pragma once
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "colossal/distributed/distributed_model.h"
#include "colossal/infer/model_runner.h"
#include "colossal/infer/sampler.h"
#include "colossal/infer/scheduler.h"
#include "colossal/infer/token_constraint.h"

namespace colossal::infer {

/// Layouts, communication and numbers are those of ModelRunner: a pass for each token that is drafted, of all texts
/// together, and those that a text needs which it has not read yet. With packed weights what is drafted for a text does
/// not depend on the texts beside it.
/// Thread safety: none.
class DraftModel {
 public:
  struct Options {
    ModelRunner::Cache cache;   ///< its own
    int64_t step_tokens = 512;  ///< in a pass, at most
    int64_t most = 4;           ///< tokens that are drafted at a time, at most
  };
  /// A text that wants a draft.
  struct Wish {
    int64_t id;
    std::vector<int64_t> tokens;                    ///< the text so far
    int64_t most;                                   ///< tokens wanted, at most Options::most
    Sampler sampler;                                ///< Sampler::for_draft()
    std::shared_ptr<TokenConstraint> constraint{};  ///< a copy of the text's own; or null
    std::vector<int64_t> end_ids{};                 ///< with which a draft ends
  };

  /// `vocabulary`: of the model that judges; what this one has beyond it is never drafted.
  /// Errors ("engine"): a model that continues no text, a cache that holds no block.
  DraftModel(distributed::DistributedModel& model, int64_t vocabulary, const Options& options);

  /// A draft for each wish, in their order; none for a text that does not fit this model's positions or its cache.
  std::vector<std::vector<DraftedToken>> write(std::vector<Wish> wishes);
  /// What was read of a text is not wanted any more. Unknown ids are none.
  void forget(int64_t id);

 private:
  bool fits(const Wish& wish) const;
  void follow(const Wish& wish);
  bool make_room(std::set<int64_t> needed, const std::vector<Scheduler::Run>& step);

  int64_t vocabulary_;
  Options options_;
  Scheduler scheduler_;
  ModelRunner runner_;
  std::set<int64_t> known_;  // ids that the scheduler has
};

}  // namespace colossal::infer
