// Where the gradients of one chunk are, from the parameters that autograd leaves them at to the sum in its shard.
#pragma once
#include <ATen/core/ScalarType.h>

#include <memory>
#include <span>

#include "colossal/memory/chunk_store.h"

namespace colossal::parallel {

/// The gradients of one chunk. In a step: zero(), for each pass take() of every slot, send(), receive() and keep(), in
/// the end the gradients of its shards are the sum.
class ChunkGradients {
 public:
  virtual ~ChunkGradients() = default;
  /// No gradients.
  virtual void zero() = 0;
  /// More gradients are to come after a sum of this step: what all ranks have of that sum counts once from here on.
  virtual void add_to_sum() {}
  /// Moves a gradient from its parameter here, where there is one that is not here already.
  virtual void take(size_t slot) = 0;
  /// Between the passes of a step, no more gradients are near: what is here goes to the store's home until the next one
  /// comes, or send(). Nothing where there is no home. Errors: of Home::keep() and Kept::replace(); those of take() and
  /// send() behind it: of Kept::bring().
  virtual void set_aside() {}
  /// Bytes that came back of what was set aside, since the start.
  virtual int64_t bytes_returned() const { return 0; }
  /// Begins to sum what is here over the first group of ranks. Collective among these.
  virtual void send() = 0;
  /// Returns when the sum over all groups is here. Collective among these.
  virtual void receive() = 0;
  /// Adds the sum to the shards' gradients. `last`: of a step, so that the update is next. Errors: of Shard::lease(),
  /// and then the sum is lost.
  virtual void keep(bool last) = 0;
  /// Makes gradients of zero for the shards if none came since zero(). Errors: those of Shard::lease().
  virtual void complete() {}
  /// Whether autograd adds to them in place, so that there is nothing to take.
  virtual bool are_in_place() const = 0;
};

/// Options of the gradients of a store (memory::Sharing).
struct GradientOptions {
  /// Dtype in which micro-batches are added up: that of the parameters, or a wider one
  at::ScalarType sums = at::kFloat;
  /// Sharded gradients only: reduce after every backward pass, so that a rank adds up its part alone; false = once a
  /// step
  bool each_pass = false;
  /// Sharded gradients only: move them to the store's home between the passes of a step (ChunkGradients::set_aside())
  bool sets_aside = false;
};

/// Over whom the gradients of a chunk are summed.
struct Summands {
  comm::Group* sharers;                 ///< who share the sum, each its part; of one rank: nobody
  std::vector<comm::Group*> further{};  ///< then one group after the other
  std::optional<comm::Compression> compression{};
  /// Returns the summands of `chunk` in `store`: the gradient_axes of its parameters, and their copies in other stages.
  static Summands of(memory::ChunkStore& store, const memory::Chunk& chunk);
  bool are_others() const { return sharers->size() > 1 || !further.empty(); }
};

/// The home of a chunk's gradients under the options of its store:
///   not shared: whole from the beginning of the run to its end; autograd adds to them in place where the dtypes agree.
///               Summed by an all_reduce, or, where states are shared, by a reduce_scatter into this rank's part.
///   shared:     whole from the first gradient of a pass to their reduce_scatter, or set_aside(), which has them in
///               segments of ChunkOptions::capacity; this rank's part until zero(), of
///               which its shards, `shards`, get views. Where the store has a home they are dropped by the update
///               (Shard::drop_gradients_after_update), and those of the last pass take the place of parameters that
///               have masters (Shard::drop_copy): 2 + 12 bytes a parameter with two moments, not 2 + 2 + 12.
/// Bytes:         L, or L for the time of a pass and L / N (L elements, N sharers).
/// Communication: that of GradientReducer.
std::unique_ptr<ChunkGradients> make_chunk_gradients(const memory::ChunkOptions& store, const memory::Chunk& chunk,
                                                     std::span<const memory::Shard> shards, Summands summands,
                                                     const GradientOptions& options);

}  // namespace colossal::parallel
