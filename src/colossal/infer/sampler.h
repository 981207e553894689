// The next token from logits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/base/fields.h"

namespace colossal::infer {

struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy
  int64_t top_k = 0;       ///< only the k most probable; 0: all
  double top_p = 1;        ///< only the most probable that together reach this probability
  int64_t seed = 0;
  void fields(Fields& f);
};

/// Draws one token after another from a stream of its own, a function of the seed and of how many were drawn: every
/// rank that holds the same logits draws the same token.
class Sampler {
 public:
  /// Errors ("sampling"): a negative temperature or top_k, top_p outside (0, 1].
  explicit Sampler(const SamplingOptions& options);
  /// logits [V] of any dtype. Ties go to the lower id.
  int64_t next(const at::Tensor& logits);

 private:
  SamplingOptions options_;
  uint64_t drawn_ = 0;
};

}  // namespace colossal::infer
