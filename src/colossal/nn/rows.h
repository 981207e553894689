// Which rows of a batch a rank holds.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::nn {

/// Part `index` of `parts` equal runs of a batch.
struct Rows {
  int64_t parts = 1, index = 0;
  /// This rank's rows of a tensor [B, ...]: a view [B / parts, ...]. Undefined stays undefined. Errors: B that does not
  /// divide.
  at::Tensor of(const at::Tensor& whole) const;
};

}  // namespace colossal::nn
