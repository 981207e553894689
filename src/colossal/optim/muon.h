// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) over shards: momentum made orthogonal.
#pragma once
#include <algorithm>

#include "colossal/optim/owner_computes.h"
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// For every matrix G [n, m] of a hidden layer, betas b0, b1, b2:
///
///   M = b0 M + (1 - b0) G;  O = newton_schulz(b0 M + (1 - b0) G)  (Nesterov);  w -= rate (s O + weight_decay w)
///
/// with s = 0.2 sqrt(max(n, m)), so that steps are as large as AdamW's and its rate and weight decay carry over (Liu et
/// al. 2025, arXiv:2502.16982), or sqrt(max(1, n / m)) (Jordan) with step_scale = "spectral". What is no such matrix
/// (vectors, tables, heads: nn::Parameter::hidden_matrix) gets AdamW with b1, b2. Nothing tells the head of somebody
/// else's module (train::initialize) from its other matrices: it is made orthogonal as they are, unless it is tied to a
/// table. Each segment of a fused weight (q, k, v; gate, up) is a matrix of its own; a convolution's kernel counts as
/// [n, rest].
///
/// Layouts: matrices are those of the whole model under every layout and way to share out: each is put together on one
///          rank of its stage, which makes it orthogonal, and goes back to all. Their number divides among the ranks.
/// States:  a value for each element of matrices, two for others, shared out as the shards are. While a step runs: what
///          OwnerComputes holds, and Resident::directions.
/// Communication: for each matrix a reduce to its rank and a broadcast from it, n m elements each, in fp32 (fp64 of
///                fp64 values), among the ranks of a stage. None for a stage of one rank.
/// Cost:    of a matrix with n <= m: 5 (4 n^2 m + 2 n^3) floating-point operations.
class Muon : public TensorwiseOptimizer {
 public:
  Muon(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override {
    return {.directions = true, .shards = std::max<size_t>(1, owners_.most_shards()), .of_directions = true};
  }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  /// A segment of a tensor is a matrix: that of the same number in owners_.
  struct Segment {
    size_t tensor;      ///< of LogicalTensors
    int64_t first_row;  ///< of the tensor's dimension 0
  };
  std::vector<OwnerComputes::Matrix> find_matrices();
  /// body(block of `buffer`, the same block of `whole`, whether this rank counts it) for what a shard holds of matrix
  /// k, `whole`.
  template <class Body>
  void for_blocks(size_t k, const memory::Resident& shard, const at::Tensor& buffer, const at::Tensor& whole,
                  const Body& body) const;
  void orthogonalize() const;

  at::TensorOptions options_;      ///< with which matrices are exchanged and multiplied
  std::vector<Segment> segments_;  ///< of each matrix
  OwnerComputes owners_;           ///< among the ranks of this stage
  PieceStates momentum_, others_;
};

/// The nearest matrix with orthonormal rows (columns, if there are fewer of these), roughly: five iterations of
/// X = a X + (b A + c A^2) X, A = X X^T, from x / |x|, with (a, b, c) = (3.4445, -4.7750, 2.0315), which bring singular
/// values to [0.7, 1.2]. x [n, m] fp32 or fp64; zeros stay zeros.
at::Tensor newton_schulz(const at::Tensor& x);

}  // namespace colossal::optim
