// What a rank updates: the optimizer's view of a chunk.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
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

/// The elements of a chunk that this rank updates: all of them, or its share of those that replicas share out.
/// All tensors are 1-D, contiguous and of one length.
struct Shard {
  at::Tensor values;  ///< fp64 or fp32, masters of `copy` if there is one; or bf16 that has no masters
  /// Of values' dtype, of copy's, or fp32 (sums of several micro-batches). Defined between the last backward pass of a
  /// step and its update, which may overwrite them
  at::Tensor gradients;
  /// The model's own parameters in a narrower dtype, to be set to the rounded values; undefined: `values` are the
  /// parameters
  at::Tensor copy;
  std::vector<Piece> pieces;  ///< ascending, each behind the one before; padding may follow the last one
};

/// body(key, offset, size) for every longest run of pieces, one behind the other, whose parameters have one key: what
/// an elementwise rule may update in one pass.
template <class KeyOf, class Body>
void for_runs(const Shard& shard, const KeyOf& key_of, const Body& body) {
  for (size_t i = 0, end; i < shard.pieces.size(); i = end) {
    const auto key = key_of(*shard.pieces[i].parameter);
    for (end = i + 1; end < shard.pieces.size() && key_of(*shard.pieces[end].parameter) == key;) ++end;
    const Piece& last = shard.pieces[end - 1];
    body(key, shard.pieces[i].offset, last.offset + last.part.size - shard.pieces[i].offset);
  }
}

/// Sum of the squares of `flat`'s elements that belong to `piece` and that this rank counts: added up over all ranks of
/// the mesh, that of the logical tensor. `flat` is as long as the piece's shard. The sum is a 0-dim fp64 tensor on the
/// device of `flat`: nobody waits for it here.
at::Tensor counted_squares(const at::Tensor& flat, const Piece& piece, const tensor::Place& place);

}  // namespace colossal::memory
