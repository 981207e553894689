// How a parameter is sharded over the mesh: which axes split which dimension, what is padded, which rank owns a
// replica.
//
// All code that depends on the sharding reads this spec: initial values, checkpoints, Hugging Face import and export,
// gradient norms, optimizers. No code infers a split from a shape.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/tensor/mesh_coordinates.h"

namespace colossal::tensor {

/// A range of a dimension that is split independently of the others: q, k and v of a fused weight are three segments.
///
/// A segment is cut in whole granules (a head is head_dim rows). With n parts and c = size / granule granules:
///   c % n == 0   part r holds granules [r c/n, (r+1) c/n);
///   c < n with `replicate` and n % c == 0   each granule is held by n/c neighbouring parts (kv heads of GQA);
///   otherwise    each part has room for ceil(c/n) granules, and the last parts are padded with zeros.
struct Segment {
  int64_t size;
  int64_t granule = 1;
  bool replicate = false;
  bool operator==(const Segment&) const = default;
};

/// Returns the sum of the sizes of the segments.
int64_t total_size(const std::vector<Segment>& segments);

/// How one dimension is split. No axes: every rank holds all of it. Several axes: the first is the outermost.
struct DimSplit {
  std::vector<std::string> axes;
  std::vector<Segment> segments;  ///< in the order of the dimension; their sizes add up to its logical size
  /// Axes that shard further what `axes` left to a rank: into equal pieces, regardless of segments, with zero padding
  /// at the end. Each rank keeps one piece, and the ranks gather the pieces to use them together. Gathering the pieces
  /// in rank order gives the unsharded part, of room() rows, followed by the padding.
  std::vector<std::string> shards{};
  bool operator==(const DimSplit&) const = default;
};

/// A box of a tensor that this rank holds: logical[start, start + size) is stored at local[local_start, local_start +
/// size).
struct LocalBox {
  std::vector<int64_t> start, local_start, size;
  /// true: this rank counts and saves the box; exactly one rank of the mesh is primary for each element
  bool primary;
};

/// The sharding of one parameter over all axes of the mesh.
struct ShardSpec {
  std::vector<int64_t> shape;    ///< logical sizes: unsharded, without padding
  std::vector<DimSplit> splits;  ///< one per dimension
  /// Axes over which each rank's gradient is a partial sum, because ranks along them hold a replica and see different
  /// rows. A layer names the axes of its own layout; nn::Parameters prepends replicas().
  std::vector<std::string> gradient_axes;
  /// Indices along the mesh axis "pipeline" of the ranks whose stages use the tensor, ascending; no other rank holds
  /// it. Empty: there are no stages. If there are several, each rank's gradient is also a partial sum over these
  /// stages.
  std::vector<int> stages{};

  /// Returns the spec of a tensor that every rank holds unsharded.
  static ShardSpec whole(std::vector<int64_t> shape);
  /// Returns the spec of a tensor whose dimension `dim` is split over `axes`. Empty `segments`: the dimension is one
  /// segment. Errors ("shard_spec"): a segment that is not whole granules; sizes that do not add up to the dimension.
  static ShardSpec split(std::vector<int64_t> shape, int64_t dim, std::vector<std::string> axes,
                         std::vector<Segment> segments = {});

  /// Returns the size in dimension `dim` of a rank's part before `shards` cuts it, padding of segments included.
  int64_t room(int64_t dim, const MeshCoordinates& coordinates) const;
  /// Returns the sizes of the local tensor, padding included. They are the same on every rank of the axes.
  std::vector<int64_t> local_shape(const MeshCoordinates& coordinates) const;
  /// Returns the boxes of this rank, each inside one segment per dimension. Elements outside all boxes are padding,
  /// which holds zeros.
  std::vector<LocalBox> local_boxes(const MeshCoordinates& coordinates) const;
  /// Returns true if the tensor is cut along this mesh axis, so that ranks along it hold different parts.
  bool splits_over(const std::string& axis) const;
  int64_t numel() const;  ///< number of elements of the logical tensor
  bool operator==(const ShardSpec&) const = default;
};

/// Returns the axes along which ranks hold replicas of a tensor: those that split the batch and not the tensor,
/// outermost first. The gradient of the tensor is summed over them. Ranks along them may shard what they would all hold
/// (ZeRO).
std::vector<std::string> replicas(const ShardSpec& spec, const MeshCoordinates& coordinates);

}  // namespace colossal::tensor
