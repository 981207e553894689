// Where a parameter lives: which mesh axes split which dimension, what is padded, who owns a copy.
//
// Everything that must know reads this: initial values, checkpoints, Hugging Face import and export, gradient norms,
// optimizers. Nobody guesses a split from a shape.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/tensor/place.h"

namespace colossal::tensor {

/// A run of a dimension that is split on its own: q, k and v of a fused weight are three segments.
///
/// It is cut in whole granules (a head is head_dim rows). With n parts and c = size / granule granules:
///   c % n == 0   part r holds granules [r c/n, (r+1) c/n);
///   c < n with `replicate` and n % c == 0   each granule is held by n/c neighbouring parts (kv heads of GQA);
///   otherwise    each part has ceil(c/n) granules of room and the last parts are padded with zeros.
struct Segment {
  int64_t size;
  int64_t granule = 1;
  bool replicate = false;
  bool operator==(const Segment&) const = default;
};

/// How one dimension is split. No axes: every rank holds all of it. Several axes: the first is the outermost.
struct DimSplit {
  std::vector<std::string> axes;
  std::vector<Segment> segments;  ///< in the order of the dimension; they add up to its logical size
  /// Axes that cut what `axes` left, segments or not, in equal pieces, the last ones padded with zeros: ranks that keep
  /// a piece each of what they use together. Gathering the pieces in rank order gives the unsharded part, room(), and
  /// the padding behind it.
  std::vector<std::string> shards{};
  bool operator==(const DimSplit&) const = default;
};

/// A box of a tensor that this rank holds: logical[start, start + size) lies at local[local_start, local_start + size).
struct Block {
  std::vector<int64_t> start, local_start, size;
  /// This rank is the one that counts it and saves it: exactly one rank of the mesh is, for each element
  bool primary;
};

struct ShardSpec {
  std::vector<int64_t> shape;    ///< logical (whole, unpadded) sizes
  std::vector<DimSplit> splits;  ///< one per dimension
  /// Axes over which each rank's gradient is a partial sum: those of ranks that hold a copy and see other rows. A layer
  /// names the axes of its own layout; nn::Parameters puts replicas() in front of them.
  std::vector<std::string> gradient_axes;
  /// Indices along the mesh axis "pipeline" of the ranks whose stages use the tensor, ascending; no other rank holds
  /// it. Empty: there are no stages. Where there are several, each rank's gradient is a partial sum over them, too.
  std::vector<int> stages{};

  /// A tensor that every rank holds whole.
  static ShardSpec whole(std::vector<int64_t> shape);
  /// A tensor whose dimension `dim` is split over `axes`. Empty `segments`: the dimension is one segment.
  static ShardSpec split(std::vector<int64_t> shape, int64_t dim, std::vector<std::string> axes,
                         std::vector<Segment> segments = {});

  /// Rows of dimension `dim` that a rank's part has before `shards` cut it, padding of segments included.
  int64_t room(int64_t dim, const Place& place) const;
  /// Sizes of the local tensor, padding included: the same on every rank of the axes.
  std::vector<int64_t> local_shape(const Place& place) const;
  /// The boxes of this rank, each inside one segment per dimension; what they do not cover is padding and holds zeros.
  std::vector<Block> blocks(const Place& place) const;
  /// Whether the tensor is cut along a mesh axis, so that ranks along it hold different parts.
  bool splits_over(const std::string& axis) const;
  int64_t numel() const;  ///< of the logical tensor
  bool operator==(const ShardSpec&) const = default;
};

/// The axes along which ranks hold replicas of a tensor: those that deal out the batch and do not split it, outermost
/// first. Its gradient is summed over them, and they may share out what they all would hold (ZeRO).
std::vector<std::string> replicas(const ShardSpec& spec, const Place& place);

}  // namespace colossal::tensor
