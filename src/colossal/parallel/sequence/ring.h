// Ranks in a ring, each of which sends to the next one and receives from the one before.
//
//   const RingOfRanks ring = ring_along(mesh, "sequence");
//   for (int step = 0; step < ring.size; ++step) {
//     std::optional<Rotation> rotation;
//     if (step + 1 < ring.size) rotation.emplace(ring, part);   // on its way
//     use(part, ring.source(step));
//     if (rotation) part = rotation->wait();
//   }
#pragma once
#include <ATen/core/Tensor.h>

#include <string>

#include "colossal/comm/mesh.h"

namespace colossal::parallel {

/// The neighbours of a rank. Alone it has none.
struct RingOfRanks {
  int size, rank;
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

}  // namespace colossal::parallel
