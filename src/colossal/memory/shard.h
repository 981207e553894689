// Shards: the elements of chunks that this rank's optimizer updates, accessed through leases.
//
//   using memory::Access;
//   memory::for_leases(store.shards(), {.values = Access::Write, .gradients = Access::Read},
//                      [&](size_t i, memory::Resident& shard) {
//                        shard.values.sub_(shard.gradients, rate);   // tensors are used while the lease lives
//                      });
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "colossal/memory/offload_store.h"
#include "colossal/nn/parameter.h"
#include "colossal/tensor/flat_part.h"

namespace colossal::memory {

/// The elements of one parameter that a shard holds, at [offset, offset + part.size) of the shard.
struct Piece {
  nn::Parameter* parameter;
  int64_t offset;
  tensor::FlatPart part;
};

/// How a lease uses a tensor. A tensor with access None is not borrowed.
enum class Access {
  None,
  Read,   ///< writes to the tensor may be lost when the lease ends
  Write,  ///< the shard keeps what is written, and a tensor that is assigned in its place
};

/// A range of a shard's optimizer states: the indices [first, end) of Resident::states.
struct Places {
  size_t first = 0, end = static_cast<size_t>(-1);
};

/// The tensors that a lease requests, with the access to each. A lease borrows no other tensors.
struct Needs {
  Access values = Access::None, gradients = Access::None;
  Access states = Access::None;  ///< access to the states in `places`; the others are not borrowed
  Places places{};
  Access copy = Access::None;  ///< access to the copy; Write whenever `values` is Write
  /// Access to the directions. If the gradients have the dtype of the values, both are one tensor, and the lease
  /// borrows the gradients with this access
  Access directions = Access::None;
  static Needs all() { return {Access::Write, Access::Write, Access::Write}; }
};

struct ShardTensors;

/// The tensors of one shard during a lease, valid while the lease exists. A tensor that the lease did not request is
/// undefined; a tensor that is assigned to such a member is lost. Values, gradients and copy are 1-D, contiguous and of
/// one length.
class Resident {
 public:
  ~Resident();
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  /// fp64 or fp32 values, the master weights of `copy` if there is one; or bf16 without master weights
  at::Tensor values;
  /// Gradients in the dtype of `values` or of `copy`, or in fp32 (sums of several micro-batches). They are defined
  /// between the last backward pass of a step and its update. The update may overwrite them
  at::Tensor gradients;
  /// The model's parameters in a narrower dtype, which the optimizer sets to the rounded values. Undefined if `values`
  /// are the parameters themselves
  at::Tensor copy;
  /// Optimizer states in the order of the Shard::add_state() calls
  std::vector<at::Tensor> states;
  /// Workspace in the dtype of `values` for what an optimizer computes from the gradients in a step. If the gradients
  /// have that dtype, it is the gradient tensor itself, because no code reads gradients after an update. Otherwise it
  /// is an additional tensor: the first lease of a step that requests it gets zeros to write to. The directions are
  /// discarded at the end of the next lease that holds them and writes values
  at::Tensor directions;
  /// Pieces that the optimizer updates: Shard::pieces()
  const std::vector<Piece>& pieces;

 private:
  friend class Shard;
  explicit Resident(std::shared_ptr<ShardTensors> shard);
  std::shared_ptr<ShardTensors> shard_;
};

/// Owner of a lease; the caller keeps it for as long as it uses the tensors. All leases of a shard that exist at one
/// time are the same object, which holds every tensor that any of them requested. When the last one ends, the tensors
/// are returned to the offload store.
using Lease = std::shared_ptr<Resident>;

/// The elements of a chunk that this rank updates: all of them, or this rank's share if replicas split the elements.
/// The class is a handle: copies refer to the same shard.
///
/// Thread safety: any thread may call any member and end a lease. A lease that is requested while the last one ends
///                starts when the tensors have been returned. Threads that share a lease must agree on who reads and
///                writes its tensors.
class Shard {
 public:
  /// Constructor arguments of a shard. The tensors are described at Resident.
  struct Parts {
    std::shared_ptr<OffloadedTensor> values;
    at::TensorOptions options;  ///< dtype and device of the values in the model
    int64_t length;             ///< elements
    std::shared_ptr<OffloadedTensor> copy{};
    /// Store for gradients and states while no lease uses them; null = InPlace. Whole gradients (set_whole_gradients)
    /// are never given to it
    std::shared_ptr<OffloadStore> offload{};
    /// Returns the parts of a shard of `values` [length], which `offload` stores together with the rest. Errors: see
    /// OffloadStore::offload().
    static Parts of(const at::Tensor& values, std::shared_ptr<OffloadStore> offload = nullptr);
  };
  /// `stored`: pieces in ascending order, each right after the one before; padding may follow the last one. `trained`:
  /// the parts of them that train (trained_pieces()); none = all of them.
  Shard(Parts parts, std::vector<Piece> stored, std::optional<std::vector<Piece>> trained = {});

  /// Returns the pieces that the optimizer updates, in ascending order. Elements between them and after them are rows
  /// that do not train (nn::Treatment::rows) or padding: no code may change them, and they count in no norm.
  const std::vector<Piece>& pieces() const;
  /// Returns the pieces of all values, which checkpoints save.
  const std::vector<Piece>& stored_pieces() const;
  /// Returns an address that all handles of this shard share, and no other shard has.
  const void* identity() const { return tensors_.get(); }
  int64_t length() const;
  /// Returns the bytes of the store's memory that a lease of all tensors takes, without gradients and directions.
  int64_t bytes() const;
  /// Returns the dtype of the values and the device on which leases provide the tensors. The device changes if the
  /// store moves its tensors (MovableStore).
  at::TensorOptions options() const;
  /// Adds a tensor to the shard's states; returns its index in Resident::states. Loads no tensor. Errors ("shard"): a
  /// lease is held. See also OffloadStore::offload().
  size_t add_state(const at::Tensor& initial) const;
  /// Reserves space in the store for directions that are not the gradient tensor. Callers do this before the first
  /// step, so that a count of the stored bytes includes them. Errors: see OffloadStore::offload().
  void make_place_for_directions() const;
  /// Sets the gradients to a view of memory that must live as long as the shard. That memory is never moved into the
  /// store.
  void set_whole_gradients(const at::Tensor& gradients) const;
  /// Adds `more` [length()], a tensor on an accelerator, to the gradients, whose sum has the dtype `sums`. Meant for
  /// stores whose borrowed tensors are on the host. The accelerator computes the sum, and the host does not wait for
  /// it. The caller must not write to `more` afterwards, and must not hold a lease. Errors ("shard"): a lease is held.
  /// See also lease().
  void add_gradients(const at::Tensor& more, at::ScalarType sums) const;
  /// Discards the gradients without loading them. The store keeps their space for the next ones.
  void drop_gradients() const;
  /// Discards the gradients at the end of the next lease that holds them and writes values, which is their update. This
  /// includes gradients that are added before that update.
  void drop_gradients_after_update() const;
  /// Discards the copy, so that gradients may use its space in the store. Does nothing while a lease is held. Callers
  /// use it if nothing reads the copy before the next update. The next lease that holds the copy recreates it from the
  /// values; every lease that writes values holds it. No code outside the shard may have borrowed the copy.
  void drop_copy() const;
  /// Records that a caller wrote to the copy: drop_copy() then keeps it until adopt_copy().
  void set_copy_written() const;
  bool is_copy_written() const;
  /// Sets the values to the copy where the copy is neither the rounded value nor the element of `shown` [length()],
  /// which is undefined or what a compressed gather made of it. Returns true if that changed an element, or if
  /// `shown` is undefined. Requires a copy. Errors: see lease().
  bool adopt_copy(const at::Tensor& shown) const;
  /// Recreates the copy, the rounded values, if it was discarded. Errors: see lease().
  void make_copy() const;

  /// Announces a lease of `needs`, so that the store can start to load the tensors.
  void prefetch(const Needs& needs) const;
  /// Starts a lease of `needs`, or adds them to the lease that is held.
  /// Errors: errors of a borrow. The tensors that this call borrowed are then returned and no lease starts; a lease
  ///         that is already held goes on. The call also throws what OffloadStore::offload() threw when an earlier
  ///         lease ended with another tensor assigned in place of a borrowed one. It throws that error once, and the
  ///         tensor remains in memory.
  Lease lease(const Needs& needs = Needs::all()) const;

 private:
  std::shared_ptr<ShardTensors> tensors_;
};

/// Calls body(index, Resident&) for each shard, under one lease of `needs` at a time. While body runs, the next shard's
/// tensors are prefetched (Shard::expect).
template <class Body>
void for_leases(const std::vector<Shard>& shards, const Needs& needs, const Body& body) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const Lease lease = shards[i].lease(needs);
    if (i + 1 < shards.size()) shards[i + 1].prefetch(needs);
    body(i, *lease);
  }
}

/// Calls body(key, offset, size) for every longest run of adjacent pieces whose parameters have one key. An elementwise
/// rule may update such a run in one pass.
template <class KeyOf, class Body>
void for_runs(const std::vector<Piece>& pieces, const KeyOf& key_of, const Body& body) {
  for (size_t i = 0, end; i < pieces.size(); i = end) {
    const auto key = key_of(*pieces[i].parameter);
    const auto is_next = [&](const Piece& before, const Piece& piece) {
      return before.offset + before.part.size == piece.offset && key_of(*piece.parameter) == key;
    };
    for (end = i + 1; end < pieces.size() && is_next(pieces[end - 1], pieces[end]);) ++end;
    const Piece& last = pieces[end - 1];
    body(key, pieces[i].offset, last.offset + last.part.size - pieces[i].offset);
  }
}

/// Returns views of the elements of `flat` that belong to `piece` and that this rank counts. Over all ranks of the
/// mesh, each element of the logical tensor is counted once. Padding, which is zero, may be included. `flat` is as long
/// as the piece's shard.
std::vector<at::Tensor> counted_parts(const at::Tensor& flat, const Piece& piece,
                                      const tensor::MeshCoordinates& coordinates);

/// Returns the sum of the squares of the elements of `flat` that belong to `piece` and that this rank counts. Added up
/// over all ranks of the mesh, it is the sum for the logical tensor. `flat` is as long as the piece's shard. The result
/// is a 0-dim fp64 tensor on the device of `flat`; the host does not wait for it.
at::Tensor counted_squares(const at::Tensor& flat, const Piece& piece, const tensor::MeshCoordinates& coordinates);

}  // namespace colossal::memory
