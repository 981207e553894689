// Which tokens a request may be answered with, one after another.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace colossal::infer {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  /// Whether each of `vocabulary` tokens may come next: bool [vocabulary] of the host, at least one true.
  virtual at::Tensor allowed(int64_t vocabulary) = 0;
  /// `token` came next, of those allowed; an end token too.
  virtual void accept(int64_t token) = 0;
  /// One that has accepted the same, and goes its own way from here: for who looks ahead.
  virtual std::shared_ptr<TokenConstraint> copy() const = 0;
};

/// logits [V] with minus infinity where the constraint does not allow a token; themselves without one (null).
at::Tensor constrained(const at::Tensor& logits, TokenConstraint* constraint);

}  // namespace colossal::infer
