// The way of tokens to their experts and back. Assignments (a token and one of its experts) are sorted by expert once,
// sent to the ranks that hold the experts, and return in the same order.
//
//   const ExpertDispatch way(experts, kept, 8, ranks);              // experts: [T, used], ascending
//   const ExpertRanks::Arrival arrival = way.begin_dispatch(x);
//   compute();                                                      // tokens are in transit
//   at::Tensor rows = arrival();                                    // [R, hidden] on this rank, grouped by expert
//   rows = ...grouped_linear(rows, weight, bias, way.ends(), ...)
//   const at::Tensor y = way.combine(rows, weights);                // [T, hidden]
//
// In passes without gradients, on a rank that has all experts:
//
//   const LocalRoute route(scores, experts, options);               // [T, E] and [T, used], on the CPU
//   const at::Tensor rows = route.dispatch(x);                      // [T, H] -> [T x used, H], expert after expert
//   const at::Tensor y = route.combine(results_of(rows, route.ends()));   // [T, H]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/nn/expert_ranks.h"
#include "colossal/nn/experts.h"
#include "colossal/ops/products/grouped_matmul.h"

namespace colossal::nn {

/// The way of one micro-batch.
///
/// Constructor: exchanges counts, ceil(count / ranks) int64 for each rank. On an accelerator the host waits
///              once, for the numbers of rows that are sent and received.
/// Elements:    dispatch and combine each send `hidden` for every assignment to another rank, and as much in backward.
/// With nodes (ExpertRanks::node()) an assignment takes two hops: to this rank's counterpart in the expert's node, and
/// within the node. The constructor makes three exchanges: of 2 int64 for each node, of an int64 for each assignment to
/// another node, and of ceil(count / ranks) int64 for each rank of the node. On an accelerator the host waits for each,
/// before them for `experts`, and for the number of `kept` assignments. Each
/// hop sends `hidden` for every assignment that changes the rank in it. The first hop of the dispatch is the exception:
/// it sends `hidden` for each other node that has an expert of the token.
/// Order:       the calls, and the ranks that take part, do not depend on the choice of experts.
class ExpertDispatch {
 public:
  /// `experts`: [T, used] in ascending order; `kept`: [T, used] bool or undefined. On meta
  /// counts are those of meant_counts().
  ExpertDispatch(const at::Tensor& experts, const at::Tensor& kept, int64_t count,
                 const std::shared_ptr<const ExpertRanks>& ranks);

  /// Starts to send x. The arrival returns the rows of this rank's experts, [R, hidden], grouped by expert, with
  /// autograd. With nodes only the first hop is made meanwhile. Rows that leave a rank may be rounded in forward
  /// (ExpertRanks::begin_exchange()); the gradient is that of the exact rows.
  ExpertRanks::Arrival begin_dispatch(const at::Tensor& x /*[T, hidden]*/) const;
  at::Tensor dispatch(const at::Tensor& x /*[T, hidden]*/) const { return begin_dispatch(x)(); }
  /// Ends of the groups of this rank's experts.
  const ops::GroupEnds& ends() const;
  /// Returns for each token the sum of its experts' results times `weights`, added in ascending order of expert in fp32
  /// (fp64 in fp64), so its bits do not depend on other tokens. A dropped assignment adds nothing. With autograd.
  at::Tensor combine(const at::Tensor& results /*[R, hidden]*/, const at::Tensor& weights /*[T, used]*/) const;

  struct Route;  // in the .cpp

 private:
  std::shared_ptr<const Route> route_;
};

/// The way on a rank that has all experts, in passes without gradients. It does in loops what ExpertDispatch does by
/// operators: for a decoded token each operator costs more than its work.
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
