// Data parallelism: gradients summed over replicas while the backward pass still runs, whole or each rank its part
// (ZeRO).
#pragma once
#include <ATen/core/ScalarType.h>

#include <memory>

#include "colossal/memory/chunk_store.h"

namespace colossal::parallel {

/// How the gradients of a step come about.
struct GradientOptions {
  /// Dtype in which micro-batches are added up: that of the parameters, or a wider one
  at::ScalarType sums = at::kFloat;
  /// Zero 2, 3: reduce after every backward pass, so that a rank adds up its part alone. Otherwise once a step
  bool each_pass = false;
};

/// Sums the gradients of a store's trained chunks over the gradient_axes of their parameters, replicas among them, and
/// over copies in other stages, to Shard::gradients. Gradients are of sums divided by global token counts, so no mean
/// is taken here.
///
/// zero 0, 1:     gradients are whole, P elements a rank, until the next step. zero 2, 3: a chunk's are whole from its
/// first gradient to their reduction, then each rank keeps its part; at most two chunks are on their way at once.
/// Communication: a step, or a pass with each_pass, sends for a chunk of L elements over N ranks: zero 0 one
///                all_reduce, 2 (N-1)/N L. zero 1 to 3 one reduce_scatter among the N that share, (N-1)/N L, then
///                all_reduces of the part, L / N elements, over runs of sharers, gradient_axes and copies, where there
///                are any. The last chunk first, in the same order on all ranks; a chunk leaves as soon as its last
///                gradient is there and those before it have left, or in finish(); one with copies in other stages in
///                finish().
/// Precision:     messages have the dtype of `sums`; with each_pass that of the parameters. With
///                ChunkOptions::compression those over replicas have a byte a number.
/// Unused parameters: count as zeros; their chunks leave in finish().
/// Errors ("gradients"): a second gradient of a parameter in one pass, whose chunk has left: it is used both inside and
///                       outside a recomputed block. One reducer a parameter: it takes the one post-accumulate hook
///                       that autograd offers.
class GradientReducer {
 public:
  GradientReducer(memory::ChunkStore& store, const GradientOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Before the first pass of a step: no gradients.
  void zero();
  /// Before each backward pass; of a pipeline before each step that makes gradients. `last` of the step: what that one
  /// does not touch leaves in finish().
  void begin(bool last);
  /// Returns when all gradients are those sums. Every rank must call.
  void finish();

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the hooks, which may outlive this object
};

}  // namespace colossal::parallel
