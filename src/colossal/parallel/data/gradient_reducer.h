// Data parallelism: gradients summed over the data axis while the backward pass still runs.
#pragma once
#include <memory>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/flat_parameters.h"

namespace colossal::parallel {

/// Sums the gradient buckets of `flat` over the ranks of mesh axis "data", the bucket's gradient_axes and its copies in other stages, in one message. Gradients are of sums
/// divided by global token counts, so no mean is taken here.
///
/// Communication: begin() .. finish() sends one all_reduce per bucket, 2 (N-1)/N * elements of the bucket, N ranks, in bucket order on
///                every rank; a bucket leaves as soon as its last gradient is there and the buckets before it have left, or in finish(); one with copies in
///                other stages in finish().
///                Without begin() a backward pass only accumulates: micro-batches but the last.
/// Unused parameters: their buckets leave in finish().
/// One reducer a parameter: it takes the one post-accumulate hook that autograd offers.
class GradientReducer {
 public:
  GradientReducer(nn::FlatParameters& flat, comm::Mesh& mesh);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Called before the last backward pass of a step, of a pipeline before the last step that makes gradients: what that one does not touch leaves in
  /// finish(). In it no parameter may be used both inside and outside a recomputed block.
  void begin();
  /// Returns when all gradients are those sums. Every rank must call.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the hooks, which may outlive this object
};

}  // namespace colossal::parallel
