// Gradients of one chunk, from the parameters where autograd leaves them to the sum in the chunk's shards.
#pragma once
#include <ATen/core/ScalarType.h>
#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "colossal/memory/chunk_store.h"

namespace colossal::parallel {

/// The gradients of one chunk. The calls of a step are zero(), then for each pass take() of every slot, send(),
/// receive(), keep() and end_pass(). After the last pass the gradients of the chunk's shards are the sum. Gradients
/// that take() moves here after send() are a summand of their own: send() them after keep(), which adds their sum.
class ChunkGradients {
 public:
  virtual ~ChunkGradients() = default;
  /// Clears the gradients.
  virtual void zero() = 0;
  /// Prepares for more gradients after a sum in the same step: the existing sum, which all ranks hold, then counts
  /// only once.
  virtual void add_to_sum() {}
  /// Moves a gradient from its parameter to this object, unless there is none or it is already here.
  virtual void take(size_t slot) = 0;
  /// Moves the gradients to the offload store between the passes of a step, until the next take() of a gradient or
  /// send() reads them back. Call it if no more gradients are expected soon. Does nothing without an offload store or
  /// without gradients. Errors: as OffloadStore::offload() and OffloadedTensor::replace(). If reading back fails, the
  /// gradients become NaN, so that this rank still joins the collective; keep() throws the error.
  virtual void set_aside() {}
  /// Returns the bytes that were read back from the offload store after set_aside(), since the start.
  virtual int64_t bytes_returned() const { return 0; }
  /// Starts to sum the gradients over the first group of ranks. Collective among these ranks.
  virtual void send() = 0;
  /// Returns when the sum over all groups is complete. Collective among these ranks.
  virtual void receive() = 0;
  /// Adds the sum to the shards' gradients. `last` is true for the last pass of a step, so that the update is next.
  /// Errors: as Shard::lease(), and those of reading back after set_aside(); the sum is then lost.
  virtual void keep(bool last) = 0;
  /// Ends a pass in which send() was called.
  virtual void end_pass() {}
  /// Makes gradients of zero for the shards if none arrived since zero(). Errors: as Shard::lease().
  virtual void complete() {}

  // Rows whose gradients are scaled one by one (GradientReducer::begin_rows()):

  /// Sets aside what take() moved here so far, and expects the gradients of rows.
  virtual void begin_rows() = 0;
  /// Returns the sum of the squares of the gradients of one row, [] in fp64, after it summed them over `tokens`, the
  /// ranks that have other tokens of the row; null = there are none. Collective among these ranks.
  virtual at::Tensor row_squares(comm::Group* tokens) = 0;
  /// Adds the gradients of the row times `factor` to the sum of rows, and clears them.
  virtual void keep_row(double factor) = 0;
  /// Takes the sum of rows as the gradients of a pass, for send().
  virtual void take_rows() = 0;

  /// Returns true if autograd adds to the gradients in place, so that take() has nothing to do.
  virtual bool are_in_place() const = 0;
};

/// Options of the gradients of a store (memory::Sharing).
struct GradientOptions {
  /// dtype in which micro-batches are accumulated: the dtype of the parameters, or a wider one
  at::ScalarType sums = at::kFloat;
  /// Sharded gradients only: reduce after every backward pass, so that a rank accumulates only its shard; false = once
  /// a step
  bool each_pass = false;
  /// Sharded gradients only: move them to the offload store between the passes of a step
  /// (ChunkGradients::set_aside())
  bool sets_aside = false;
};

/// The groups of ranks over which the gradients of a chunk are summed.
struct Summands {
  comm::Group* sharers;                 ///< ranks that share the sum, each holding its shard; a group of one rank =
                                        ///< not shared
  std::vector<comm::Group*> further{};  ///< groups over which the sum continues, one after the other
  std::optional<comm::Compression> compression{};
  /// Returns the summands of `chunk` in `store`: the gradient_axes of its parameters, and their replicas in other
  /// stages.
  static Summands of(memory::ChunkStore& store, const memory::Chunk& chunk);
  bool are_others() const { return sharers->size() > 1 || !further.empty(); }
};

/// Makes the gradients of a chunk, under the options of its store:
///   not sharded: they exist as a whole throughout the run; autograd adds to them in place if the dtypes
///                agree. They are summed by an all_reduce, or, if states are sharded, by a reduce_scatter into this
///                rank's shard.
///   sharded:     they exist as a whole from the first gradient of a pass to the reduce_scatter, or to set_aside(),
///                which stores them in segments of ChunkOptions::capacity. This rank's shard exists until zero();
///                `shards` get views of it. If there is an offload store (`OffloadStore`), the update drops them
///                (Shard::drop_gradients_after_update). The gradients of the last pass then also replace parameters
///                that have master weights (Shard::drop_copy), unless the chunk is permanent or a gather reads them.
///                This takes 2 + 12 bytes per parameter with two moments, not 2 + 2 + 12.
/// Memory:        not sharded: L elements. Sharded: L during a pass, L / N otherwise (chunk of L elements, N sharing
///                ranks). Both: L more for gradients after send(), until they are sent.
/// Communication: see GradientReducer.
std::unique_ptr<ChunkGradients> make_chunk_gradients(const memory::ChunkOptions& store, const memory::Chunk& chunk,
                                                     std::span<const memory::Shard> shards, Summands summands,
                                                     const GradientOptions& options);

}  // namespace colossal::parallel
