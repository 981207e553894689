// The choice of experts for each token, from the scores of a router.
//
//   const at::Tensor scores = scores_of(logits, options);                            // [T, E]
//   const at::Tensor experts = chosen_experts(scores.detach(), bias, options);       // [T, used], ascending
//   const at::Tensor weights = weights_of(scores, experts, options);                 // [T, used]
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "colossal/nn/experts.h"

namespace colossal::nn {

/// Added to the sum of the sigmoids of a token, because all of them may be 0; DeepSeek adds the same.
constexpr double kSmallestScoreSum = 1e-20;

/// Returns the scores of all experts, softmax or sigmoid of `logits` [T, E], with autograd.
at::Tensor scores_of(const at::Tensor& logits, const ExpertOptions& options);

/// Returns the share of each token's scores that each expert has, [T, E], with autograd: sigmoids divided by their sum.
/// If all sigmoids of a token are 0, so are its shares.
at::Tensor shares_of(const at::Tensor& scores, const ExpertOptions& options);

/// Returns the experts of each token, [T, used] int64, in ascending order. They are the best by scores + bias; among
/// equal ones the lower expert is chosen. A NaN counts as the best. With groups, only experts of the groups_used best
/// groups are eligible. `bias`: [E], or undefined. On meta the result has no values.
at::Tensor chosen_experts(const at::Tensor& scores /*[T, E]*/, const at::Tensor& bias, const ExpertOptions& options);

/// Returns the weights of the chosen experts: their scores, divided by their sum if options.normalize, times
/// options.scale. If all sigmoids of a token are 0, so are its weights. With autograd.
at::Tensor weights_of(const at::Tensor& scores, const at::Tensor& experts, const ExpertOptions& options);

/// Returns how many elements of `experts` (int64, below `count`) are each expert: int64 [count], on their device. Does
/// not wait for it, as at::bincount does. On meta the result has no values.
at::Tensor expert_counts(const at::Tensor& experts, int64_t count);

/// Returns which of the assignments [T, used] of a micro-batch, any integer dtype, are kept if each expert takes the
/// first `limit` of its own: bool [T, used]. Does not wait for an accelerator.
at::Tensor kept_assignments(const at::Tensor& experts, int64_t count, int64_t limit);

/// The choice of a mixture in the first pass of a block. The second pass of a recomputed block uses it again.
struct ExpertChoice {
  at::Tensor experts;  ///< [T, used], ascending
  at::Tensor kept;     ///< [T, used] bool, false = dropped; undefined = none is dropped
  at::Tensor sums;     ///< fp64, joined over ranks (see experts.cpp); undefined = not computed
};

/// The choices of all mixtures of a block, in the order in which they run.
class KeptChoices {
 public:
  /// Starts a pass of the block.
  void begin_pass() { next_ = 0; }
  /// Returns the choice that the earlier pass kept at this place; null in the first pass.
  const ExpertChoice* next() { return next_ < kept_.size() ? &kept_[next_++] : nullptr; }
  void keep(ExpertChoice choice) {
    kept_.push_back(std::move(choice));
    ++next_;
  }

 private:
  std::vector<ExpertChoice> kept_;
  size_t next_ = 0;
};

/// Part of a ForwardContext: the choices of the mixtures of a block, which its second pass uses again. Without it, the
/// block is not recomputed.
struct BlockChoices {
  std::shared_ptr<KeptChoices> kept;
};

/// Returns the choices that the passes of a recomputed block share; null = the block is not recomputed.
KeptChoices* choices_of(const ForwardContext& step);

}  // namespace colossal::nn
