// The micro-batches of a training step of a user-defined module.
//
//   train::MicroBatches micro_batches(optimization, world, config.micro_batches(), train::LossOf::Rank);
//   micro_batches.zero_grad();
//   for (const Rows& rows : step) micro_batches.backward(loss_of(rows));
//   const train::StepResult result = micro_batches.step();
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/comm/world.h"
#include "colossal/train/optimization.h"
#include "colossal/train/step_result.h"

namespace colossal::train {

/// The rows that a loss is the mean of.
enum class LossOf {
  Rank,      ///< rows of this rank; gradients are of the mean over the ranks
  AllRanks,  ///< rows of all ranks, so that every rank has the same loss
};

/// Counts the micro-batches of a step, runs backward from their losses, and averages these by their weights.
class MicroBatches {
 public:
  /// `count`: number of micro-batches of a step. `optimization` and `world` must outlive this object. The parameters
  /// have their first values: what is written into them from here on is kept (Optimization::watch()).
  MicroBatches(Optimization& optimization, comm::World& world, int64_t count, LossOf loss_of);

  /// Clears gradients and the count of micro-batches.
  void zero_grad();
  int64_t done() const { return static_cast<int64_t>(losses_.size()); }
  /// Errors ("training"): all micro-batches of the step are done.
  void require_room() const;
  /// Runs backward from the loss of the next micro-batch, a scalar. The step uses the gradients of
  /// sum(weight * loss) / sum(weight). With LossOf::AllRanks the ranks must give the same weights, whose sum is
  /// `count`. Releases gathered parameters.
  /// Communication: see parallel::GradientReducer and memory::ChunkStore.
  /// Errors ("training"), before any communication: a loss with more than one element or without a gradient; a weight
  ///         that is negative or not finite; as require_room().
  void backward(const at::Tensor& loss, double weight = 1);
  /// Clips, updates, and counts the step: see Optimization::step(). Errors ("training"): micro-batches are missing.
  StepResult step();
  /// Returns the weighted mean of this rank's losses in the last step(); NaN if their weights were all 0.
  double loss() const { return loss_; }
  /// Returns the sum of these weights.
  double weight() const { return weight_; }

 private:
  /// Returns the number of losses of a step, of all ranks that have their own.
  int64_t losses_of_step() const;

  Optimization& optimization_;
  comm::World& world_;
  int64_t count_;
  LossOf loss_of_;
  std::vector<at::Tensor> losses_;  // of the micro-batches so far
  std::vector<double> weights_;     // of these losses
  double loss_ = 0, weight_ = 0;
};

}  // namespace colossal::train
