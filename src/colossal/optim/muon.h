// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) over shards: orthogonalized momentum.
#pragma once
#include <algorithm>

#include "colossal/optim/owner_computes.h"
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// The update of every matrix G [n, m] of a hidden layer, with betas b0, b1, b2:
///
///   M = b0 M + (1 - b0) G;  O = newton_schulz(b0 M + (1 - b0) G)  (Nesterov);  w -= rate (s O + weight_decay w)
///
/// By default s = 0.2 sqrt(max(n, m)), so that steps are as large as AdamW's and its rate and weight decay carry over
/// (Liu et al. 2025, arXiv:2502.16982). With step_scale = "spectral", s = sqrt(max(1, n / m)) (Jordan). Other
/// parameters (vectors, tables, heads: nn::Parameter::hidden_matrix) get AdamW with b1, b2. In a module that the caller
/// supplies (train::initialize), the head cannot be distinguished from other matrices. It is orthogonalized like them,
/// unless it is tied to a table. Each slice of a stack (LogicalTensors) is a matrix of its own, as is each segment of a
/// fused weight (q, k, v; gate, up). A convolution's kernel counts as [n, product of its other sizes].
///
/// Layouts: matrices are logical ones under every layout and sharding. Each is gathered on one rank of its stage, which
///          orthogonalizes it and sends the result to all ranks of the stage. These ranks share the matrices.
/// States:  one value per element of matrices, two per element of other parameters, sharded as the shards are. During a
///          step: the memory of OwnerComputes, and Resident::directions.
/// Communication: per matrix a reduce to its rank and a broadcast from it, n m elements each, in fp32 (fp64 for fp64
///                values), among the ranks of a stage. None for a stage of one rank.
/// Cost:    5 (4 n^2 m + 2 n^3) floating-point operations for a matrix with n <= m.
class Muon : public TensorwiseOptimizer {
 public:
  Muon(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override {
    return {.directions = true, .shards = std::max<size_t>(1, owners_.max_shards()), .of_directions = true};
  }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  /// A segment of a tensor. Segment number k is matrix number k of owners_.
  struct Segment {
    size_t tensor;      ///< number of the tensor in LogicalTensors
    int64_t first_row;  ///< first row in dimension 0 of the tensor
  };
  std::vector<OwnerComputes::Matrix> find_matrices();
  /// Calls body(block of a shard's directions, the same block of `whole`, whether this rank counts it) for the parts
  /// that this rank's shards hold of `whole`, the matrix number k.
  template <class Body>
  void for_blocks(size_t k, const at::Tensor& whole, const OwnerComputes::Leases& leases, const Body& body) const;
  void orthogonalize() const;

  at::TensorOptions options_;                 ///< dtype and device in which matrices are exchanged and multiplied
  std::vector<std::vector<HeldPart>> parts_;  ///< parts of each tensor
  std::vector<Segment> segments_;             ///< segment of each matrix
  OwnerComputes owners_;                      ///< owners among the ranks of this stage
  PieceStates momentum_, others_;
};

/// Returns approximately the nearest matrix with orthonormal rows, or orthonormal columns if there are fewer of them.
/// Runs five iterations of X = a X + (b A + c A^2) X, A = X X^T, from x / |x|, with (a, b, c) = (3.4445, -4.7750,
/// 2.0315). They move singular values into [0.7, 1.2]. x [n, m] is fp32 or fp64; zeros stay zeros.
at::Tensor newton_schulz(const at::Tensor& x);

}  // namespace colossal::optim
