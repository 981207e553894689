// Restricts the tokens of a completion, one after another.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace colossal::infer {

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
