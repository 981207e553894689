#include "colossal/ops/gradient_sum.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace colossal::ops {

at::Tensor gradient_sum(const at::Tensor& leaf) {
  if (!leaf.defined() || !leaf.is_leaf() || !leaf.requires_grad() || at::GradMode::is_enabled()) return {};
  const at::Tensor& sum = leaf.grad();
  const bool fits = sum.defined() && sum.layout() == at::kStrided && sum.scalar_type() == leaf.scalar_type() &&
                    sum.is_contiguous() && !sum.requires_grad();
  return fits ? sum : at::Tensor();
}

}  // namespace colossal::ops
