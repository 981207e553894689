// Ranks in a ring, each of which sends to the next one and receives from the one before, and rings of such rings: parts
// go round within a node while the next node's are on their way.
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

/// The neighbours of a rank. Alone it has none.
struct RingOfRanks {
  int size = 1, rank = 0;
  comm::Group *next = nullptr, *previous = nullptr;

  comm::Work send(const at::Tensor& x) const { return next->send(x, 1); }
  comm::Work receive(at::Tensor& x) const { return previous->recv(x, 0); }
  /// Whose part arrives at `step`.
  int source(int step) const { return (rank - step + size) % size; }
};

/// Groups are made, one for each way between neighbours, in an order that all ranks go by.
RingOfRanks ring_along(comm::Mesh& mesh, const std::string& axis);

/// A part on its way from the rank before, while this rank's goes to the next one.
class Rotation {
 public:
  /// `part` must be contiguous, and of the same sizes on all ranks.
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

/// Rings `inner` of neighbours, those of a node, and `outer` of the ranks that stand at the same place in each. In a
/// turn of the outer ring the parts of one node go round the inner one, and meanwhile the part that a rank has first in
/// the next turn comes from the node before. So N = O I ranks see the parts of all, as in one ring, of which the outer
/// one carries O - 1 a rank: one ring over all has a rank in each node that sends all N - 1 to the next node. One ring
/// is an outer one whose inner rings are single ranks.
/// Source: LoongTrain, arXiv:2406.18485, section 4 (double-ring attention).
struct DoubleRing {
  using Use = std::function<void(const at::Tensor& part, int source)>;
  using Add = std::function<at::Tensor(const at::Tensor& part, int source)>;

  int size() const { return outer.size * inner.size; }
  int rank() const { return outer.rank * inner.size + inner.rank; }
  /// Number `index` of the ranks whose parts come to this one, which is the first itself.
  int source(int index) const {
    return outer.source(index / inner.size) * inner.size + inner.source(index % inner.size);
  }
  /// use(part, source) of the part of each rank, in the order of source(): first this rank's, `own`, contiguous and of
  /// the same sizes on all ranks. Collective.
  ///
  /// Communication: a rank sends O - 1 parts over the outer ring and O (I - 1) over the inner one, and uses others
  ///                meanwhile.
  /// Memory:        the part in use and the one on its way; with both rings also those that start this turn and the
  ///                next.
  void for_parts(const at::Tensor& own, const Use& use) const;
  /// The same, where add() says what this rank adds to the sum of a part, contiguous, of the part's sizes and `type`:
  /// the sum over all ranks of what they added for `own`. Collective.
  ///
  /// Communication: the parts as in for_parts(), and their sums behind them: O over the outer ring (none where O is 1),
  ///                O (I - 1) over the inner one. A turn ends with a wait for the last of these.
  /// Memory:        beside the parts three sums: what arrives, what add() gave, and what is being sent; with both rings
  ///                six.
  at::Tensor sums_of_parts(const at::Tensor& own, at::ScalarType type, const Add& add) const;

  RingOfRanks outer, inner{};

 private:
  at::Tensor sum_of_turn(int turn, const at::Tensor& first, at::ScalarType type, const Add& add) const;
};

/// Along ring_axes() of `config`: one axis, or that between nodes and that within them. Groups are made as ring_along()
/// does, those of the outer ring first.
DoubleRing double_ring(comm::Mesh& mesh, const SequenceConfig& config);

}  // namespace colossal::parallel
