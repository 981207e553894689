// Data parallelism: sums gradients over replicas during the backward pass, replicated or sharded (ZeRO).
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
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "colossal/parallel/data/chunk_gradients.h"

namespace colossal::parallel {

/// Sums the gradients of a store's trained chunks into Shard::gradients. The sum runs over the gradient_axes of their
/// parameters, including the replicas, and over replicas in other stages. Losses are sums divided by global token
/// counts, so the reducer takes no mean.
///
/// Memory:        see make_chunk_gradients(). Of sharded gradients at most two chunks are whole and in transit at once.
///                Without each_pass they are summed once a step and are whole until then. With sets_aside these whole
///                gradients are in the offload store between passes, except for at most two chunks that last received
///                some.
/// Communication: a step, or a pass with each_pass, sends for a chunk of L elements over N ranks one all_reduce,
///                2 (N-1)/N L. If states are sharded, it sends one reduce_scatter among the N sharing ranks, (N-1)/N L,
///                then all_reduces of the shard, L / N elements, over runs of sharing ranks, gradient_axes and replicas
///                in other stages, if there are any. The last chunk is first, in the same order on all ranks. A chunk
///                is sent once its last gradient has arrived and all earlier chunks were sent, or in finish(). A chunk
///                with replicas in other stages, or with parameters that blocks share, is sent in finish(). A chunk
///                with a parameter that gets another gradient after that, as in reentrant checkpoints, is sent once
///                more in finish(), on all ranks.
/// Precision:     messages have the dtype of `sums`, or with each_pass the dtype of the parameters. With
///                ChunkOptions::compression the first message of a chunk has one byte per element, if there are
///                replicas. This is the reduce_scatter among the sharing ranks, or the one all_reduce of whole
///                gradients. Later messages, over runs of sharing ranks, gradient_axes and replicas in other stages,
///                keep the dtype of `sums`.
/// Unused parameters: count as zeros; their chunks are sent in finish().
/// Several models (nn::Parameter::model): a pass through one model sends only the chunks of that model. A model that no
///                pass of a step used has gradients of zero after complete(); nothing is sent for it.
/// Errors of gathers: see memory::ChunkStore. Errors that only this rank's offload store has are kept in the
///                ChunkStore, for ChunkStore::rethrow().
/// Errors ("gradients"): a gradient of another model than the pass's.
/// Hooks:         a parameter can have only one reducer, which uses autograd's only post-accumulate hook.
class GradientReducer {
 public:
  /// `store` must outlive the reducer.
  GradientReducer(memory::ChunkStore& store, const GradientOptions& options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Clears the gradients; call it before the first pass of a step.
  void zero();
  /// Prepares for passes of the same step after a finish(): their gradients are added to the existing sums.
  void add_to_sums(const std::string& model = "");
  /// Call it before each backward pass, or in a pipeline before each step that makes gradients. `last` is true for the
  /// last one of a step; chunks that it does not touch are sent in finish(). `model` is the model that the pass uses.
  void begin(bool last, const std::string& model = "");
  /// Prepares for rows whose gradients are scaled one by one before they are summed over rows and ranks:
  ///
  ///   reducer.begin_rows("");
  ///   for (...) {
  ///     reducer.begin_row("");
  ///     backward(row);
  ///     reducer.keep_row(factor_for(reducer.row_squares()));
  ///   }
  ///   reducer.finish_rows();                          // then finish()
  ///
  /// No rank may have parts of a parameter, and none has a pipeline. Memory: the whole gradients of the model once more
  /// on each rank, in fp32 at least. Communication: an all_reduce of each chunk for each row over the gradient_axes
  /// that do not split rows, if there are any; then as a pass.
  void begin_rows(const std::string& model);
  /// Call it before the backward pass of each row.
  void begin_row(const std::string& model);
  /// Returns the sum of the squares of the row's gradient, [] in fp64 on the device.
  at::Tensor row_squares();
  /// Adds the row's gradient times `factor` to the sum.
  void keep_row(double factor);
  /// Begins to sum the sum of rows over ranks.
  void finish_rows();
  /// Returns when all gradients are those sums. Every rank must call it.
  void finish();
  /// Call it after the last pass of a step, before its update: see "Several models". Sends nothing.
  void complete();
  /// Returns the bytes of whole gradients that were read back from the offload store for later micro-batches, since
  /// the start.
  int64_t bytes_returned() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the hooks, which may outlive this object
};

}  // namespace colossal::parallel
