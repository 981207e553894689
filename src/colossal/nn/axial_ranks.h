// The ranks among which dynamic axial parallelism cuts the representations of a folding model (FastFold, Cheng et al.
// 2022, arXiv:2203.00854): the pairs z [B, N, N, c] along i or j, and the alignment m [B, S, N, c] along rows or
// residues. Layers are written for the part that a rank has, and ask for what they need of other parts.
//
//   const at::Tensor bias = ranks.gathered(own_bias, 1, n);         // [B, own rows, N, H] -> [B, N, N, H]
//   const at::Tensor sums = ranks.summed_part(partial, 1);          // [B, N, N, c] -> [B, own rows, N, c]
//   z = ranks.switched(z, {1, n, "rows"}, {2, n, "columns"});       // cut by i -> cut by j
//
// Layers::axial_ranks() makes them. The base class is one rank, which has everything.
//
// Parts:         of p ranks, rank r has the near_even_share() number r of a dimension, without padding. It may be empty
//                if the dimension is shorter than p.
// Communication: X elements of the whole tensor. gathered() and summed_part() send (p - 1) X over all ranks,
//                switched() X less what ranks keep, which is (p - 1) / p X if p divides both dimensions; backward as
//                much. All ranks must call.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "colossal/nn/axis_switch.h"
#include "colossal/nn/tokens.h"

namespace colossal::nn {

/// A switch that has begun, so that a rank can compute while it goes on.
class PendingSwitch {
 public:
  virtual ~PendingSwitch() = default;
  /// Returns the result. It must be called once, on all ranks. Its backward begins the opposite switch, which the
  /// backward of the beginning waits for.
  virtual at::Tensor wait() = 0;
};

class AxialRanks {
 public:
  virtual ~AxialRanks() = default;
  virtual int64_t size() const { return 1; }
  virtual int64_t rank() const { return 0; }

  /// Returns the indices of a dimension of `whole` elements that a rank has.
  Range range(int64_t whole, int64_t rank) const;
  Range own(int64_t whole) const { return range(whole, rank()); }
  /// Returns this rank's part of a tensor that every rank has, as a view; undefined stays undefined.
  at::Tensor part(const at::Tensor& whole, int64_t dim) const;

  /// Calls body(first, count) for runs of at most `at_once` elements of this rank's part of a dimension of `whole`
  /// elements; `first` counts from 0 in the part. All ranks get equally many runs, empty ones at the end if need be:
  /// ranks that share weights must use them equally often.
  void for_runs(int64_t whole, int64_t at_once, const std::function<void(int64_t first, int64_t count)>& body) const;

  /// Returns the parts of all ranks, joined along `dim`, which has `whole` elements. Backward sums the gradients of all
  /// ranks, because each uses the result in its own way.
  virtual at::Tensor gathered(const at::Tensor& own, int64_t dim, int64_t whole) const;
  /// Returns this rank's part along `dim` of the sum of every rank's `partial`. Backward gathers.
  virtual at::Tensor summed_part(const at::Tensor& partial, int64_t dim) const;
  /// Returns the sum of every rank's `partial`, such as a loss of its part. Backward passes the gradient on unchanged.
  virtual at::Tensor total(const at::Tensor& partial) const;
  /// Takes x, cut along `from` and whole along `to`, and returns it whole along `from` and cut along `to`.
  virtual at::Tensor switched(const at::Tensor& x, const Axis& from, const Axis& to) const;
  /// Returns z_ji for this rank's rows i of pairs z [B, N, N, c]: [B, own rows, N, c]. Sends what switched() does.
  at::Tensor mirrored(const at::Tensor& z) const;
  /// Begins switched(), whose numbers are the same. x must not change before wait() returns. In a layout without
  /// overlap the switch has ended when this returns.
  virtual std::unique_ptr<PendingSwitch> begin_switch(const at::Tensor& x, const Axis& from, const Axis& to) const;

  /// Calls use(piece, rank) with the piece of every rank, this one's first, while the next one arrives round a ring.
  /// Rank r's piece has lengths[r] elements along `dim`, maybe none. Without a gradient.
  virtual void each_piece(const at::Tensor& own, int64_t dim, const std::vector<int64_t>& lengths,
                          const std::function<void(const at::Tensor& piece, int64_t rank)>& use) const;
  /// Returns the sum over all ranks of their make(this rank), which returns a rank's addend, contiguous, with
  /// lengths[r] elements along one of its dimensions. Sums go round a ring. Without a gradient.
  virtual at::Tensor sum_of_pieces(const std::vector<int64_t>& lengths,
                                   const std::function<at::Tensor(int64_t rank)>& make) const;
};

}  // namespace colossal::nn
