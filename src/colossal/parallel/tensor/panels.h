// Panels of a matrix on their way around a group, two at a time: what lets SUMMA multiply one while the next travels.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>

#include "colossal/comm/group.h"

namespace colossal::parallel {

/// The tiles of all ranks of a group in rank order, each broadcast by its owner; the next one is under way while one is
/// in use.
/// Memory: two tiles besides the own one. With transfers of d and work of c a panel, n panels take d + (n - 1) max(c,
///         d) + c.
class Panels {
 public:
  Panels(comm::Group& group, const at::Tensor& own);
  /// Panel t, for t = 0, 1, ... in this order, valid until the next call. Starts the transfer of panel t + 1.
  const at::Tensor& take(int t);

 private:
  void fetch(int t);

  comm::Group& group_;
  at::Tensor own_;
  std::array<at::Tensor, 2> slots_, received_;
  std::array<comm::Work, 2> works_;
};

/// Partial sums on their way to the ranks that own them; two may be under way while the next is computed.
class Sums {
 public:
  explicit Sums(comm::Group& group) : group_(group) {}
  /// This rank's term of what rank t owns, for every t in the same order on all ranks.
  void give(int t, at::Tensor partial);
  /// The sum that this rank owns, once all are given.
  at::Tensor own();

 private:
  comm::Group& group_;
  at::Tensor own_;
  std::array<at::Tensor, 2> slots_;
  std::array<comm::Work, 2> works_;
};

}  // namespace colossal::parallel
