// Work on whole matrices of which ranks hold parts: each is put together on one rank, its owner, which computes, and
// all ranks get the result.
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

/// Deals matrices to the ranks of a group so that these have about the same to do.
///
/// Matrices are taken in windows of neighbours that have as many elements as the largest one times the ranks, at most;
/// inside a window the most expensive goes first to the rank that has least to do. Those of a window are on their
/// owners at one time, and the shards that hold parts of them are leased meanwhile, those of the next window expected:
/// a shard is brought once, if the matrices of a shard are neighbours.
///
/// Memory:        about one largest matrix a rank, and one more on its way; the shards of a window.
/// Communication: for each matrix a reduce to its owner and a broadcast of the result.
class OwnerComputes {
 public:
  struct Matrix {
    std::vector<int64_t> shape, result;
    double cost;                 ///< of the work, in any unit
    std::vector<size_t> shards;  ///< of this rank, that have parts of it
  };
  /// Leases of the shards of a window, by their number.
  using Leases = std::map<size_t, memory::Lease>;
  struct Work {
    memory::Needs needs;
    /// Copies what this rank counts of matrix k into `whole`, which is zero.
    std::function<void(size_t k, const at::Tensor& whole, const Leases& leases)> collect;
    /// On the owner alone.
    std::function<at::Tensor(size_t k, const at::Tensor& whole)> compute;
    /// On all ranks.
    std::function<void(size_t k, const at::Tensor& result, const Leases& leases)> hand_out;
  };
  /// `matrices`: the same on all ranks of `group`, but for `shards`.
  OwnerComputes(comm::Group& group, std::vector<Matrix> matrices);
  const std::vector<Matrix>& matrices() const { return matrices_; }
  /// Shards that run() has leases of at one time, at most.
  size_t most_shards() const;
  /// `options`: of matrices and results. Collective among the group.
  void run(const std::vector<memory::Shard>& shards, const at::TensorOptions& options, const Work& work) const;

 private:
  std::set<size_t> shards_of(size_t window) const;

  comm::Group& group_;
  std::vector<Matrix> matrices_;
  std::vector<size_t> windows_;  // where each begins, and the end of the last
  std::vector<int> owners_;      // of each matrix
};

}  // namespace colossal::optim
