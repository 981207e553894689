// What a rank updates: the optimizer's view of a chunk, reached through leases.
//
//   memory::for_leases(store.shards(), [&](size_t i, memory::Resident& shard) {
//     shard.values.sub_(shard.gradients, rate);   // tensors of a shard are used while its lease lives, and not kept
//   });
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "colossal/nn/parameter.h"
#include "colossal/tensor/flat_part.h"

namespace colossal::memory {

/// A part of one parameter, at [offset, offset + part.size) of a shard.
struct Piece {
  nn::Parameter* parameter;
  int64_t offset;
  tensor::FlatPart part;
};

/// Where tensors that are a shard's alone (masters, optimizer states, its part of the gradients) lie while nobody has a
/// lease of it. Views of something larger, the model's parameters or whole gradients, are never given to a home.
/// Thread safety: one call at a time for each shard.
class Home {
 public:
  virtual ~Home() = default;
  /// A lease that needs `kept` is near: a home may begin to bring it.
  virtual void expect(const at::Tensor& /*kept*/) {}
  /// The tensor to work with, of the same values: what put() returned, or what the shard was made of.
  virtual at::Tensor bring(const at::Tensor& kept) = 0;
  /// The lease is over, and nobody reads `lent` any more. Returns a tensor that the shard keeps in its place and gives
  /// to the next bring(): it need not hold the values, only let this home find them.
  /// Errors must not leave it: leases end in destructors. bring() may throw what went wrong before.
  virtual at::Tensor put(const at::Tensor& lent) = 0;
};

struct ShardTensors;

/// A lease of one shard: its tensors, valid while it lives. What is written to them, and which tensors they are, stays
/// with the shard. Values, gradients and copy are 1-D, contiguous and of one length.
class Resident {
 public:
  ~Resident();
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  at::Tensor values;  ///< fp64 or fp32, masters of `copy` if there is one; or bf16 that has no masters
  /// Of values' dtype, of copy's, or fp32 (sums of several micro-batches). Defined between the last backward pass of a
  /// step and its update, which may overwrite them
  at::Tensor gradients;
  /// The model's own parameters in a narrower dtype, to be set to the rounded values; undefined: `values` are the
  /// parameters
  at::Tensor copy;
  /// What Shard::add_state() was given, in that order
  std::vector<at::Tensor> states;
  /// Ascending, each behind the one before; padding may follow the last one
  const std::vector<Piece>& pieces;

 private:
  friend class Shard;
  explicit Resident(std::shared_ptr<ShardTensors> shard);
  std::shared_ptr<ShardTensors> shard_;
};

/// Who wants the tensors of a shard for longer keeps its lease; all leases of a shard at one time are the same, also
/// those that several threads ask for: one that is asked for while the last one ends begins when its tensors are back.
/// Who writes to the tensors of a lease is for its threads to agree on.
using Lease = std::shared_ptr<Resident>;

/// The elements of a chunk that this rank updates: all of them, or its share of those that replicas share out.
/// A handle: copies are the same shard.
class Shard {
 public:
  /// What one is made of: see Resident.
  struct Parts {
    at::Tensor values;
    at::Tensor copy{};
    /// `values` are a view of the model's parameters, and stay where they are
    bool values_stay = false;
    /// Of what is the shard's alone; null: all of it stays where it is
    std::shared_ptr<Home> home{};
  };
  Shard(Parts parts, std::vector<Piece> pieces);

  const std::vector<Piece>& pieces() const;
  int64_t length() const;
  /// Dtype of the values, and the device of whoever has a lease.
  at::TensorOptions options() const;
  /// Adds a tensor to the shard's states; returns its place in Resident::states.
  size_t add_state(at::Tensor initial) const;
  /// Gradients that are a view of something that lives as long as the shard, and stays where it is.
  void set_whole_gradients(at::Tensor gradients) const;
  /// A lease is near.
  void expect() const;
  Lease lease() const;

 private:
  std::shared_ptr<ShardTensors> tensors_;
};

/// body(index, Resident&) for each shard, one lease at a time; the next shard is expected while body has one.
template <class Body>
void for_leases(const std::vector<Shard>& shards, const Body& body) {
  for (size_t i = 0; i < shards.size(); ++i) {
    const Lease lease = shards[i].lease();
    if (i + 1 < shards.size()) shards[i + 1].expect();
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

/// Sum of the squares of `flat`'s elements that belong to `piece` and that this rank counts: added up over all ranks of
/// the mesh, that of the logical tensor. `flat` is as long as the piece's shard. The sum is a 0-dim fp64 tensor on the
/// device of `flat`: nobody waits for it here.
at::Tensor counted_squares(const at::Tensor& flat, const Piece& piece, const tensor::Place& place);

}  // namespace colossal::memory
