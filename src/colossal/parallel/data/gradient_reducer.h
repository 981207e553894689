// Data parallelism: gradients summed over replicas while the backward pass still runs, whole or each rank its part
// (ZeRO).
//
//   parallel::GradientReducer reducer(store, {.sums = at::kFloat});
//   reducer.zero();                                   // a step of two micro-batches
//   for (const bool last : {false, true}) {
//     const at::Tensor loss = forward(...);           // divided by what all ranks together have
//     reducer.begin(last);
//     loss.backward();                                // chunks leave as their gradients are complete
//   }
//   reducer.finish();                                 // store.shards() have the sums over all ranks
#pragma once
#include <memory>
#include <string>

#include "colossal/parallel/data/chunk_gradients.h"

namespace colossal::parallel {

/// Sums the gradients of a store's trained chunks over the gradient_axes of their parameters, replicas among them, and
/// over copies in other stages, to Shard::gradients. Gradients are of sums divided by global token counts, so no mean
/// is taken here.
///
/// Memory:        that of make_chunk_gradients(). Of gradients that are shared at most two chunks are whole and on
///                their way at once. Without each_pass they are summed once a step, and until then whole: in the
///                store's home, if it has one, but for the two chunks that gradients came for last.
/// Communication: a step, or a pass with each_pass, sends for a chunk of L elements over N ranks: one all_reduce,
///                2 (N-1)/N L; where states are shared one reduce_scatter among the N that share, (N-1)/N L, then
///                all_reduces of the part, L / N elements, over runs of sharers, gradient_axes and copies, where there
///                are any. The last chunk first, in the same order on all ranks; a chunk leaves as soon as its last
///                gradient is there and those before it have left, or in finish(); one with copies in other stages in
///                finish().
/// Precision:     messages have the dtype of `sums`; with each_pass that of the parameters. With
///                ChunkOptions::compression the first message of a chunk has a byte a number, where there are
///                replicas: the reduce_scatter among those that share, or of whole gradients the one all_reduce. Those
///                that follow, over runs of sharers, gradient_axes and copies, keep the dtype of `sums`.
/// Unused parameters: count as zeros; their chunks leave in finish().
/// Several models (nn::Parameter::model): a pass through one sends the chunks of that model alone. Those of a model
///                that no pass of a step went through have gradients of zero from complete() on; nothing is sent for
///                them.
/// Errors of gathers, see memory::ChunkStore. Of this rank's home alone: wait in the store, for rethrow().
/// Errors ("gradients"): a second gradient of a parameter in one pass, whose chunk has left: it is used both inside and
///                       outside a recomputed block; a gradient of another model than that of the pass.
/// One reducer a parameter: it takes the one post-accumulate hook that autograd offers.
class GradientReducer {
 public:
  GradientReducer(memory::ChunkStore& store, const GradientOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Before the first pass of a step: no gradients.
  void zero();
  /// Before the passes of a step that come behind a finish(): their gradients are added to the sums that are there.
  void add_to_sums(const std::string& model = "");
  /// Before each backward pass; of a pipeline before each step that makes gradients. `last` of the step: what that one
  /// does not touch leaves in finish(). `model`: the one that the pass goes through.
  void begin(bool last, const std::string& model = "");
  /// Returns when all gradients are those sums. Every rank must call.
  void finish();
  /// Behind the last pass of a step, before its update: see "Several models". Nothing is sent.
  void complete();
  /// Bytes of whole gradients that came back from the store's home for those of further micro-batches, since the start.
  int64_t bytes_returned() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the hooks, which may outlive this object
};

}  // namespace colossal::parallel
