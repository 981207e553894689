// Adafactor (Shazeer and Stern, arXiv:1804.04235) over shards.
#pragma once
#include "colossal/optim/factored.h"
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// Algorithms 4 and 5 of the paper without momentum, with decay 1 - t^-0.8, clipping at 1 and relative steps:
///
///   V = moment of g^2 + 1e-30, of matrices by its rows and columns;  u = g / sqrt(V);  u /= max(1, RMS(u))
///   w -= rate * max(1e-3, RMS(w)) * u + rate * weight_decay * w
///
/// The rate is the schedule's; the paper uses min(1e-2, 1 / sqrt(t)). States: two vectors per matrix, on every rank,
/// and one value per element of other parameters. u is stored in Resident::directions.
/// Passes over matrices: sums of rows and columns (4 bytes per element for fp32), u and its norm (8), the norm of w
///                       (4), the step (12).
/// Communication: two all_reduces of doubles per step among all ranks: n + m for each matrix [n, m], and 2 * tensors.
class Adafactor : public TensorwiseOptimizer {
 public:
  Adafactor(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  SecondMoments moments_;
};

}  // namespace colossal::optim
