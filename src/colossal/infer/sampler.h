// The next token from logits.
//
//   infer::Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 7});
//   const int64_t token = sampler.next(logits);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::infer {

struct SamplingOptions {
  double temperature = 0;  ///< 0: greedy
  int64_t top_k = 0;       ///< only the k most probable; 0: all
  double top_p = 1;        ///< only the most probable that together reach this probability
  int64_t seed = 0;
  void fields(Fields& f);
};

/// The token that `uniform`, a number in [0, 1), picks of logits [V] of any dtype: int64 [], on their device, for which
/// the host does not wait. Of temperature 0 the most probable. Ties go to the lower id.
at::Tensor pick(const at::Tensor& logits, const SamplingOptions& options, double uniform);

/// The same by a walk through numbers of the host: the reference.
int64_t pick_reference(const std::vector<double>& logits, const SamplingOptions& options, double uniform);

/// Draws one token after another from a stream of its own, a function of the seed and of how many were drawn: every
/// rank that holds the same logits draws the same token.
class Sampler {
 public:
  /// Errors ("sampling"): a negative temperature or top_k, top_p outside (0, 1].
  explicit Sampler(const SamplingOptions& options);
  /// pick() of logits [V]. Cost: the host waits for the device, from which one number comes.
  int64_t next(const at::Tensor& logits);

 private:
  SamplingOptions options_;
  uint64_t drawn_ = 0;
};

}  // namespace colossal::infer
