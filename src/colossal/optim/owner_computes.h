// Computations on whole matrices that are sharded over ranks: each matrix is gathered on one rank, its owner, which
// computes. All ranks get the result.
//
//   const OwnerComputes owners(group, matrices);
//   owners.run(shards, options,
//              {.needs = {.gradients = Access::Read},
//               .collect = [&](size_t k, const at::Tensor& whole, const auto& leases) { part(whole).copy_(mine); },
//               .compute = [&](size_t k, const at::Tensor& whole) { return newton_schulz(whole); },
//               .hand_out = [&](size_t k, const at::Tensor& all, const auto& leases) { mine.copy_(part(all)); }});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "colossal/comm/group.h"
#include "colossal/memory/shard.h"

namespace colossal::optim {

/// Assigns matrices to the ranks of a group so that the ranks have about equal work.
///
/// Matrices are processed in windows of neighbours. A window has at most as many elements as the largest matrix times
/// the number of ranks. Inside a window the matrices are assigned in order of decreasing cost, each to the rank with
/// the least work. All matrices of a window are on their owners at one time. During that time the shards that hold
/// parts of them are leased, and the shards of the next window are prefetched. If the matrices of a shard are
/// neighbours, the shard is loaded once.
///
/// Memory:        about one largest matrix per rank, and as much for the matrices of one owner in transit; the shards
///                of a window.
/// Communication: for each window and owner a reduce of its matrices and a broadcast of their results. Many small
///                matrices, such as the experts of a mixture, therefore share calls.
class OwnerComputes {
 public:
  struct Matrix {
    std::vector<int64_t> shape, result;
    double cost;                 ///< cost of the computation, in any unit
    std::vector<size_t> shards;  ///< numbers of this rank's shards that hold parts of it
  };
  /// Leases of the shards of a window, by shard number.
  using Leases = std::map<size_t, memory::Lease>;
  struct Work {
    memory::Needs needs;
    /// Copies the elements of matrix k that this rank counts into `whole`, which is initially zero.
    std::function<void(size_t k, const at::Tensor& whole, const Leases& leases)> collect;
    /// Computes the result; called on the owner only.
    std::function<at::Tensor(size_t k, const at::Tensor& whole)> compute;
    /// Distributes the result into this rank's shards; called on all ranks.
    std::function<void(size_t k, const at::Tensor& result, const Leases& leases)> hand_out;
  };
  /// `matrices` are the same on all ranks of `group`, except for `shards`.
  OwnerComputes(comm::Group& group, std::vector<Matrix> matrices);
  const std::vector<Matrix>& matrices() const { return matrices_; }
  /// Returns the maximum number of shards that run() leases at one time.
  size_t max_shards() const;
  /// Runs `work` on all matrices. `options` are the options of matrices and results. Collective among the group.
  void run(const std::vector<memory::Shard>& shards, const at::TensorOptions& options, const Work& work) const;

 private:
  std::set<size_t> shards_of(size_t window) const;
  void run_window(size_t window, const at::TensorOptions& options, const Work& work, const Leases& leases) const;

  comm::Group& group_;
  std::vector<Matrix> matrices_;
  std::vector<size_t> windows_;  // first matrix of each window, and the end of the last window
  std::vector<int> owners_;      // owner of each matrix
};

}  // namespace colossal::optim
