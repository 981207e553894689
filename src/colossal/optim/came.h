// CAME (Luo et al., arXiv:2307.02047) over shards: Adafactor's memory with a measure of how far updates can be trusted.
#pragma once
#include "colossal/optim/factored.h"
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// The paper's algorithm 2, betas b1, b2, b3:
///
///   V = moment (b2) of g^2 + 1e-30, of matrices by its rows and columns;  u = g / sqrt(V);  u /= max(1, RMS(u))
///   m = b1 m + (1 - b1) u;  S = moment (b3) of (u - m)^2 + 1e-16, by its rows and columns
///   w -= rate (m / sqrt(S) + weight_decay w); where w is not a matrix, m in place of m / sqrt(S)
///
/// States: a value an element, four vectors a matrix on every rank, and one value more for each element of other
///         parameters; u, then u - m, then m / sqrt(S) lie in Resident::directions.
/// Passes over matrices: sums of rows and columns (4 bytes an element of fp32), u and its norm (8), m and u - m (16),
/// sums of these (4), m / sqrt(S) (8), the step (12).
/// Communication: two all_reduces of the sum of rows and columns of all matrices, and one of a number a tensor, doubles
///                a step among all ranks.
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
