// GaLore (Zhao et al., arXiv:2403.03507) over shards: AdamW on gradients projected to low rank.
#pragma once
#include <algorithm>

#include "colossal/optim/factored.h"
#include "colossal/optim/owner_computes.h"
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// AdamW in a low-rank space for every matrix [n, m] (LogicalTensors) whose smaller side is larger than `rank`. If
/// n <= m, P holds the leading left singular vectors [n, rank] of its gradient:
///
///   R = P^T G;  N = Adam's direction for R;  w -= learning_rate (projection_scale P N + weight_decay w)
///
/// If n > m, the projection is from the right (R = G P, P [m, rank]). P is recomputed in step 1 and every update_every
/// steps. Other parameters get AdamW. It works under every layout, because the projections of the parts that ranks hold
/// add up.
///
/// States: rank (n + 2 m) values per matrix (n the smaller side), on every rank, and two per element of other
///         parameters. During a step: rank m more values per matrix, and Resident::directions of one shard at a time.
/// Communication: an all_reduce of the sum of all R per step among all ranks. In steps that compute P: a reduce of each
///                whole gradient to the rank that computes it, and a broadcast of P.
class Galore : public TensorwiseOptimizer {
 public:
  Galore(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true, .shards = std::max<size_t>(1, owners_.max_shards())}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  struct Matrix {
    size_t tensor;  ///< number of the tensor in LogicalTensors
    bool from_left;
    at::Tensor projection;  ///< [smaller side, rank], a view of projections_
    int64_t at;             ///< offset of its R in the flat buffers of all R
    std::vector<int64_t> low_shape;
    at::Tensor low(const at::Tensor& flat) const {
      return flat.narrow(0, at, low_shape[0] * low_shape[1]).view(low_shape);
    }
  };
  /// Calls body(matrix, block) for the blocks of matrices that a shard holds.
  template <class Body>
  void for_blocks(const memory::Resident& shard, const Body& body) const;
  bool is_projected(const LogicalTensors::Entry& entry) const;
  std::vector<OwnerComputes::Matrix> find_matrices();
  void find_projections();
  at::Tensor projected() const;
  at::TensorOptions options() const;  // type_, on the device of the values

  at::ScalarType type_;                       ///< fp64 for fp64 values, else fp32
  std::vector<std::vector<HeldPart>> parts_;  ///< parts of each tensor
  std::vector<Matrix> matrices_;
  /// One tensor [matrices, smaller side, rank] for each parameter with matrices, in the order of their declaration
  std::vector<at::Tensor> projections_;
  std::vector<int64_t> place_;  ///< index of a tensor in matrices_; -1 = not projected
  int64_t total_ = 0;           ///< elements of all R
  OwnerComputes owners_;        ///< owners of matrices_, among all ranks
  at::Tensor moments_[2];       ///< moments of all R, flat
  PieceStates others_;
};

}  // namespace colossal::optim
