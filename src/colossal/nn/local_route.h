// The way of tokens to their experts and back, on a rank that has all experts, in passes without gradients. It does in
// loops what expert_dispatch.h does by operators: for a decoded token each operator costs more than its work.
//
//   const nn::LocalRoute route(scores, experts, options);            // [T, E] and [T, used], on the CPU
//   const at::Tensor rows = route.dispatch(x);                       // [T, H] -> [T x used, H], expert after expert
//   const at::Tensor y = route.combine(results_of(rows, route.ends()));   // [T, H]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/nn/experts.h"
#include "colossal/ops/products/grouped_matmul.h"

namespace colossal::nn {

class LocalRoute {
 public:
  /// `scores` [T, E], fp32 or fp64, and `experts` [T, used], int64 in ascending order (chosen_experts()). The weight of
  /// an assignment is that of weights_of(). No assignment is dropped.
  LocalRoute(const at::Tensor& scores, const at::Tensor& experts, const ExpertOptions& options);

  /// Returns where the rows of each expert end.
  const ops::GroupEnds& ends() const { return ends_; }
  /// Returns the row of x [T, H] of each assignment, in the order of experts, then of tokens.
  at::Tensor dispatch(const at::Tensor& x) const;
  /// Returns the weighted sums y [T, H] of the results [T x used, H], in their dtype. Sums are fp32, in fp64 fp64.
  at::Tensor combine(const at::Tensor& results) const;

 private:
  int64_t tokens_, used_;
  ops::GroupEnds ends_;
  std::vector<int64_t> place_;   // [T x used] row of each assignment
  std::vector<double> weights_;  // [T x used]
};

}  // namespace colossal::nn
