// Panels of a matrix in transit around a group, two at a time, so that SUMMA multiplies one panel during the transfer
// of the next.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

#include "colossal/comm/group.h"

namespace colossal::parallel {

/// The tiles of all ranks of a group in rank order, each broadcast by its owner. The next tile is in transit while one
/// is in use.
/// Memory: two tiles in addition to this rank's own. With a transfer time d and a work time c per panel, n panels take
/// d + (n - 1) max(c, d) + c.
class Panels {
 public:
  Panels(comm::Group& group, const at::Tensor& own);
  /// Returns panel t, for t = 0, 1, ... in this order, valid until the next call. Starts the transfer of panel t + 1.
  const at::Tensor& take(int t);

 private:
  void fetch(int t);

  comm::Group& group_;
  at::Tensor own_;
  std::array<at::Tensor, 2> slots_, received_;
  std::array<comm::Work, 2> works_;
};

/// Partial sums in transit to the ranks that own them; two may be in transit while the next one is computed.
class Sums {
 public:
  explicit Sums(comm::Group& group) : group_(group) {}
  /// Sends this rank's term of the sum that rank t owns. Call it for every t, in the same order on all ranks.
  void give(int t, at::Tensor partial);
  /// Returns the sum that this rank owns, after all terms were given.
  at::Tensor own();

 private:
  comm::Group& group_;
  at::Tensor own_;
  std::array<at::Tensor, 2> slots_;
  std::array<comm::Work, 2> works_;
};

}  // namespace colossal::parallel
