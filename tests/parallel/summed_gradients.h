// Sums gradients parameter by parameter, by their specs alone: for tests of other code.
#pragma once
#include <ATen/ATen.h>

#include "colossal/comm/mesh.h"
#include "colossal/nn/parameter.h"

namespace colossal::test {

/// Sets all gradients to zero, also for parameters that no backward pass will reach.
inline void zero_gradients(nn::Parameters& parameters) {
  for (nn::Parameter& p : parameters) p.value.mutable_grad() = at::zeros_like(p.value);
}

/// Sums over replicas, and over the ranks that hold partial sums or copies.
inline void sum_gradients(nn::Parameters& parameters, comm::Mesh& mesh) {
  for (nn::Parameter& p : parameters) {
    const std::vector<std::string>& axes = p.spec.gradient_axes;
    const bool has_copies = p.spec.stages.size() > 1;
    comm::Group& ranks = has_copies ? mesh.among(axes, "pipeline", p.spec.stages) : mesh.group(axes);
    ranks.all_reduce(p.value.mutable_grad(), comm::Reduce::Sum).wait();
  }
}

}  // namespace colossal::test
