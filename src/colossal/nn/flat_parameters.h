// Parameters and their gradients packed in flat buckets: one collective, one kernel for many small tensors.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/nn/parameter.h"

namespace colossal::nn {

/// Where a parameter lies in its bucket, in elements.
struct FlatSlot {
  Parameter* parameter;
  int64_t offset, size;
};

/// Parameters without gaps between them, whose gradients are summed over the same ranks. `values` and `gradients` are 1-D and of one length.
struct FlatBucket {
  at::Tensor values, gradients;
  std::vector<FlatSlot> slots;
  std::vector<std::string> gradient_axes;  ///< as those of each ShardSpec
  std::vector<int> copies;                 ///< likewise its `stages`, where there are several; else empty
};

/// Repacks parameters.value as views of buckets and sets their .grad to views of the gradient buckets, so that backward passes
/// accumulate in place.
///
/// Order: the last parameter first: gradients become ready roughly in that order. A bucket closes at `bucket_bytes` (one parameter at
/// least); parameters summed over other ranks go to another one. The same on all ranks of one layout.
/// Invariant: nobody replaces a parameter's value or gradient tensor; in-place writes only.
class FlatParameters {
 public:
  FlatParameters(Parameters& parameters, int64_t bucket_bytes);
  std::vector<FlatBucket>& buckets() { return buckets_; }
  const std::vector<FlatBucket>& buckets() const { return buckets_; }
  void zero_gradients();

 private:
  std::vector<FlatBucket> buckets_;
};

/// The part of a flat 1-D tensor that a slot names, in the shape of its parameter.
at::Tensor view_of_slot(const at::Tensor& flat, const FlatSlot& slot);

}  // namespace colossal::nn
