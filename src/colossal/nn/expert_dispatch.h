// The way of tokens to their experts and back. Assignments (a token and one of its experts) are sorted by expert once,
// sent to the ranks that hold the experts, and return in the same order.
//
//   const ExpertDispatch way(experts, kept, 8, ranks);              // experts: [T, used], ascending
//   at::Tensor rows = way.dispatch(x);                              // [R, hidden] on this rank, grouped by expert
//   rows = ...grouped_linear(rows, weight, bias, way.ends(), ...)
//   const at::Tensor y = way.combine(rows, weights);                // [T, hidden]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/nn/expert_ranks.h"
#include "colossal/ops/products/grouped_matmul.h"

namespace colossal::nn {

/// The way of one micro-batch. The constructor exchanges counts: one all_to_all of ceil(count / ranks) int64 for each
/// rank. dispatch() and combine() each send hidden elements for every assignment to another rank, and as many in
/// backward. On an accelerator the constructor waits once for the counts.
class ExpertDispatch {
 public:
  /// `experts`: [T, used] in ascending order; `kept`: [T, used] bool or undefined. On meta loads are even.
  ExpertDispatch(const at::Tensor& experts, const at::Tensor& kept, int64_t count, const ExpertRanks& ranks);

  /// Returns the rows of this rank's experts, [R, hidden], grouped by expert. With autograd.
  at::Tensor dispatch(const at::Tensor& x /*[T, hidden]*/) const;
  /// Ends of the groups of this rank's experts.
  const ops::GroupEnds& ends() const { return ends_; }
  /// Returns for each token the sum of its experts' results times `weights`, added in ascending order of expert in fp32
  /// (fp64 in fp64), so its bits do not depend on other tokens. A dropped assignment adds nothing. With autograd.
  at::Tensor combine(const at::Tensor& results /*[R, hidden]*/, const at::Tensor& weights /*[T, used]*/) const;

 private:
  void exchange_counts(const std::vector<int64_t>& counts, int64_t count);

  const ExpertRanks& ranks_;
  int64_t tokens_ = 0, used_ = 0;
  at::Tensor token_of_;                   // [A] the token of each sorted assignment
  at::Tensor place_;                      // [T, used] the place of each assignment in that order; A = dropped
  std::vector<int64_t> sent_, received_;  // rows to and from each rank
  at::Tensor by_expert_, by_source_;      // permutations between the order of arrival and that of experts
  ops::GroupEnds ends_;
};

}  // namespace colossal::nn
