// CAME (Luo et al., arXiv:2307.02047) over shards: Adafactor's memory with a measure of how far updates can be trusted.
#pragma once
#include "colossal/optim/factored.h"
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// Algorithm 2 of the paper, with betas b1, b2, b3:
///
///   V = moment (b2) of g^2 + 1e-30, of matrices by its rows and columns;  u = g / sqrt(V);  u /= max(1, RMS(u))
///   m = b1 m + (1 - b1) u;  S = moment (b3) of (u - m)^2 + 1e-16, by its rows and columns
///   w -= rate (m / sqrt(S) + weight_decay w); if w is not a matrix, m in place of m / sqrt(S)
///
/// States: one value per element, four vectors per matrix on every rank, and one more value per element of other
///         parameters. Resident::directions stores u, then u - m, then m / sqrt(S).
/// Passes over matrices: sums of rows and columns (4 bytes per element for fp32), u and its norm (8), m and u - m (16),
/// sums of these (4), m / sqrt(S) (8), the step (12).
/// Communication: three all_reduces of doubles per step among all ranks: two of n + m for each matrix [n, m], and one
///                of one per tensor.
class Came : public TensorwiseOptimizer {
 public:
  Came(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  SecondMoments moments_;
  FactoredMoments instability_;
  ShardStates averages_;
};

}  // namespace colossal::optim
