// What a rank updates: the optimizer's view of a chunk, reached through leases.
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
#include <vector>

#include "colossal/memory/home.h"
#include "colossal/nn/parameter.h"
#include "colossal/tensor/flat_part.h"

namespace colossal::memory {

/// A part of one parameter, at [offset, offset + part.size) of a shard.
struct Piece {
  nn::Parameter* parameter;
  int64_t offset;
  tensor::FlatPart part;
};

/// What a lease does with a tensor. None: it is not brought.
enum class Access {
  None,
  Read,   ///< what is written to it may be lost when the lease ends
  Write,  ///< what is written to it, and which tensor it is, stays with the shard
};

/// Some of a shard's states: those at the places [first, end).
struct Places {
  size_t first = 0, end = static_cast<size_t>(-1);
};

/// What a lease is of. Only that is brought.
struct Needs {
  Access values = Access::None, gradients = Access::None;
  Access states = Access::None;  ///< of `places`; none of the others
  Places places{};
  Access copy = Access::None;  ///< of values that are to be written it is brought to be written in any case
  /// Needs gradients likewise where these have the values' dtype: then they are the same tensor
  Access directions = Access::None;
  static Needs all() { return {Access::Write, Access::Write, Access::Write}; }
};

struct ShardTensors;

/// A lease of one shard: its tensors, valid while it lives. What the lease is not of is undefined; a tensor that is put
/// in its place is lost. Values, gradients and copy are 1-D, contiguous and of one length.
class Resident {
 public:
  ~Resident();
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  at::Tensor values;  ///< fp64 or fp32, masters of `copy` if there is one; or bf16 that has no masters
  /// Gradients in the dtype of `values` or of `copy`, or in fp32 (sums of several micro-batches). They are defined
  /// between the last backward pass of a step and its update, which may overwrite them
  at::Tensor gradients;
  /// The model's own parameters in a narrower dtype, to be set to the rounded values; undefined: `values` are the
  /// parameters
  at::Tensor copy;
  /// What Shard::add_state() was given, in that order
  std::vector<at::Tensor> states;
  /// For what a rule makes of the gradients in a step, of values' dtype: the gradients themselves where they have it,
  /// as nobody reads them after an update; else a tensor beside them, zeros for the first lease of it, to be written.
  /// They are over with the next lease that has them and writes values
  at::Tensor directions;
  /// Ascending, each behind the one before; padding may follow the last one
  const std::vector<Piece>& pieces;

 private:
  friend class Shard;
  explicit Resident(std::shared_ptr<ShardTensors> shard);
  std::shared_ptr<ShardTensors> shard_;
};

/// Ownership of a lease, which a caller keeps for as long as it uses the tensors. All leases of a shard at one time are
/// the same object, with everything that any of them needs. When the last one ends, the tensors are returned.
using Lease = std::shared_ptr<Resident>;

/// The elements of a chunk that this rank updates: all of them, or its share of those that replicas share out.
/// A handle: copies are the same shard.
///
/// Thread safety: any thread may call any member and end a lease; a lease that is asked for while the last one ends
///                begins when its tensors are back. Who reads and writes the tensors of a lease that several threads
///                have is for these to agree on.
class Shard {
 public:
  /// What one is made of: see Resident.
  struct Parts {
    std::shared_ptr<Kept> values;
    at::TensorOptions options;  ///< of the values, as the model has them
    int64_t length;             ///< elements
    std::shared_ptr<Kept> copy{};
    /// Home of gradients and states while no lease has them; null = InPlace. Whole gradients (set_whole_gradients) are
    /// never given to it
    std::shared_ptr<Home> home{};
    /// Makes the parts of a shard of `values` [length], which `home` keeps like the rest. Errors: those of
    /// Home::keep().
    static Parts of(const at::Tensor& values, std::shared_ptr<Home> home = nullptr);
  };
  Shard(Parts parts, std::vector<Piece> pieces);

  const std::vector<Piece>& pieces() const;
  /// Returns an address that all handles of this shard share, and no other shard has.
  const void* identity() const { return tensors_.get(); }
  int64_t length() const;
  /// That a lease of all of it takes of the home's memory, without gradients and directions.
  int64_t bytes() const;
  /// Dtype of the values, and the device of whoever has a lease, which changes where the home moves (MovableHome).
  at::TensorOptions options() const;
  /// Adds a tensor to the shard's states; returns its place in Resident::states. Nothing is brought. Errors ("shard"):
  /// somebody has a lease; those of Home::keep().
  size_t add_state(const at::Tensor& initial) const;
  /// The place of directions that are apart from the gradients, in the home: before the first step, so that whoever
  /// counts what the home keeps finds them. Errors: of Home::keep().
  void make_place_for_directions() const;
  /// Gradients that are a view of something that lives as long as the shard, and stays where it is.
  void set_whole_gradients(const at::Tensor& gradients) const;
  /// gradients += `more` [length()], in the dtype `sums`: of an accelerator, where the home lends on the host. The sum
  /// is made on the accelerator, and nobody waits for it. Nobody writes to `more` any more, or has a lease.
  /// Errors: those of lease().
  void add_gradients(const at::Tensor& more, at::ScalarType sums) const;
  /// From now on there are no gradients. Nothing is brought; a home keeps the place for the next ones.
  void drop_gradients() const;
  /// The gradients, those to come too, are over with the next lease that has them and writes values: their update.
  void drop_gradients_after_update() const;
  /// Nobody wants the copy before an update, unless somebody has a lease: it is forgotten, and gradients may lie in its
  /// place. The next lease that has it, as those that write values do, makes it anew of the values. Nobody may have
  /// brought it beside the shard.
  void drop_copy() const;
  /// The copy is there again, if it was dropped: the rounded values. Errors: of lease().
  void make_copy() const;

  /// A lease of `needs` is near.
  void expect(const Needs& needs) const;
  /// Errors: of Kept::bring(). What came before is given back, and no lease begins; one that somebody has goes on.
  ///         And what Home::keep() threw when an earlier lease ended with another tensor in place of one that it got:
  ///         once, and the tensor is kept in memory.
  Lease lease(const Needs& needs = Needs::all()) const;

 private:
  std::shared_ptr<ShardTensors> tensors_;
};

/// body(index, Resident&) for each shard, one lease of `needs` at a time; the next shard is expected while body has
/// one.
template <class Body>
void for_leases(const std::vector<Shard>& shards, const Needs& needs, const Body& body) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const Lease lease = shards[i].lease(needs);
    if (i + 1 < shards.size()) shards[i + 1].expect(needs);
    body(i, *lease);
  }
}

/// body(key, offset, size) for every longest run of pieces, one behind the other, whose parameters have one key: what
/// an elementwise rule may update in one pass.
template <class KeyOf, class Body>
void for_runs(const std::vector<Piece>& pieces, const KeyOf& key_of, const Body& body) {
  for (size_t i = 0, end; i < pieces.size(); i = end) {
    const auto key = key_of(*pieces[i].parameter);
    for (end = i + 1; end < pieces.size() && key_of(*pieces[end].parameter) == key;) ++end;
    const Piece& last = pieces[end - 1];
    body(key, pieces[i].offset, last.offset + last.part.size - pieces[i].offset);
  }
}

/// The elements of `flat` that belong to `piece` and that this rank counts, as views: over all ranks of the mesh each
/// element of the logical tensor once, and padding, which is zero, at times. `flat` is as long as the piece's shard.
std::vector<at::Tensor> counted_parts(const at::Tensor& flat, const Piece& piece, const tensor::Place& place);

/// Sum of the squares of `flat`'s elements that belong to `piece` and that this rank counts: added up over all ranks of
/// the mesh, that of the logical tensor. `flat` is as long as the piece's shard. The sum is a 0-dim fp64 tensor on the
/// device of `flat`: nobody waits for it here.
at::Tensor counted_squares(const at::Tensor& flat, const Piece& piece, const tensor::Place& place);

}  // namespace colossal::memory
