// Rings of ranks, in which each rank sends to the next one and receives from the previous one, and rings of such
// rings. In the latter, parts circulate within a node while parts of the next node are in transit.
//
//   const DoubleRing ring = double_ring(mesh, config);
//   ring.for_parts(own, [&](const at::Tensor& part, int source) { use(part, source); });
//   const at::Tensor sum = ring.sums_of_parts(own, fp32, [&](const at::Tensor& part, int source) { return of(part); });
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "colossal/comm/mesh.h"
#include "colossal/parallel/sequence/config.h"

namespace colossal::parallel {

/// The neighbours of a rank in a ring. A ring of one rank has none.
struct RingOfRanks {
  int size = 1, rank = 0;
  comm::Group *next = nullptr, *previous = nullptr;

  comm::Work send(const at::Tensor& x) const { return next->send(x, 1); }
  comm::Work receive(at::Tensor& x) const { return previous->recv(x, 0); }
  /// Returns the rank whose part arrives at `step`.
  int source(int step) const { return (rank - step + size) % size; }
};

/// Makes a ring along `axis`, with a group for each direction between neighbours, in an order that is the same on all
/// ranks.
RingOfRanks ring_along(comm::Mesh& mesh, const std::string& axis);

/// One exchange: a part arrives from the previous rank while this rank's part is sent to the next one.
class Rotation {
 public:
  /// `part` must be contiguous, and have the same sizes on all ranks.
  Rotation(const RingOfRanks& ring, const at::Tensor& part);
  at::Tensor wait() {
    receiving_.wait();
    sending_.wait();
    return received_;
  }

 private:
  at::Tensor sent_, received_;
  comm::Work sending_, receiving_;
};

/// A ring of rings. The rings `inner` connect neighbours, the ranks of a node; `outer` connects the ranks at the same
/// position in each node. In a turn of the outer ring the parts of one node circulate in the inner one. At the same
/// time, the part that a rank uses first in the next turn arrives from the previous node. All N = O I ranks thus see
/// the parts of all, as in one ring, but the outer ring sends only O - 1 parts per rank. In one ring over all ranks,
/// one rank of each node sends all N - 1 parts to the next node. A single ring is an outer one whose inner rings are
/// single ranks. Source: LoongTrain, arXiv:2406.18485, section 4 (double-ring attention).
struct DoubleRing {
  using Use = std::function<void(const at::Tensor& part, int source)>;
  using Add = std::function<at::Tensor(const at::Tensor& part, int source)>;

  int size() const { return outer.size * inner.size; }
  int rank() const { return outer.rank * inner.size + inner.rank; }
  /// Returns the rank whose part is number `index` in the order of arrival; number 0 is this rank itself.
  int source(int index) const {
    return outer.source(index / inner.size) * inner.size + inner.source(index % inner.size);
  }
  /// Calls use(part, source) with the part of each rank, in the order of source(). The first is this rank's, `own`,
  /// which must be contiguous and of the same sizes on all ranks. Collective.
  ///
  /// Communication: a rank sends O - 1 parts over the outer ring and O (I - 1) over the inner one, and
  ///                uses other parts at the same time.
  /// Memory:        the part in use and the one in transit; with both rings also the parts that start this turn and the
  ///                next.
  void for_parts(const at::Tensor& own, const Use& use) const;
  /// Runs for_parts() with add(), which returns this rank's contribution to the sum of a part, contiguous, of the
  /// part's sizes and `type`. Returns the sum over all ranks of their contributions for `own`. Collective.
  ///
  /// Communication: the parts as in for_parts(), each followed by its sum: O sums over the outer ring
  ///                (none if O is 1) and O (I - 1) over the inner one. A turn ends with a wait for the last of these.
  /// Memory:        in addition to the parts three sums: the one that arrives, the result of add(), and the one in
  ///                transit; with both rings six.
  at::Tensor sums_of_parts(const at::Tensor& own, at::ScalarType type, const Add& add) const;

  RingOfRanks outer, inner{};

 private:
  at::Tensor sum_of_turn(int turn, const at::Tensor& first, at::ScalarType type, const Add& add) const;
};

/// Makes the rings along ring_axes() of `config`: one axis, or the axis between nodes and the axis within them. Groups
/// are made as in ring_along(), the outer ring's first.
DoubleRing double_ring(comm::Mesh& mesh, const SequenceConfig& config);

}  // namespace colossal::parallel
