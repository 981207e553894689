// Restricts the tokens of a completion, one after another.
//
//   class EvenTokens final : public infer::TokenConstraint {
//     at::Tensor allowed(int64_t vocabulary) override { return at::arange(vocabulary).remainder(2).eq(0); }
//     void accept(int64_t) override {}
//     std::shared_ptr<infer::TokenConstraint> copy() const override { return std::make_shared<EvenTokens>(*this); }
//   };
//   infer::Request request;
//   request.constraint = std::make_shared<EvenTokens>();
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace colossal::infer {

/// A rule for the tokens of one completion. An error that a member throws ends the request with FinishReason::Failed.
/// Thread safety: the thread that steps the engine calls the members.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Returns for each of `vocabulary` tokens whether it may come next: bool [vocabulary] on the host, at least one
  /// true.
  virtual at::Tensor allowed(int64_t vocabulary) = 0;
  /// Advances past `token`, which must be allowed. Called for end tokens too.
  virtual void accept(int64_t token) = 0;
  /// Returns an independent copy with the same accepted tokens, for callers that look ahead.
  virtual std::shared_ptr<TokenConstraint> copy() const = 0;
};

/// Returns logits [V] with minus infinity for tokens that the constraint does not allow. If `constraint` is null,
/// returns `logits` unchanged.
at::Tensor constrained(const at::Tensor& logits, TokenConstraint* constraint);

}  // namespace colossal::infer
