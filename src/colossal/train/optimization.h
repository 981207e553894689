// The part of training that follows backward, for gradients from any source: chunks, reduction, clipping, loss scale,
// update.
#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/checkpoint.h"
#include "colossal/comm/mesh.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/memory/device_trace.h"
#include "colossal/memory/tiers/inputs_at.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/optim/gradient_norm.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/run/config.h"
#include "colossal/run/stored_weights.h"
#include "colossal/train/device_use.h"
#include "colossal/train/loss_scale.h"
#include "colossal/train/model_optimizers.h"
#include "colossal/train/step_result.h"
#include "colossal/train/tier_needs.h"

namespace colossal::train {

/// The weights of the losses of a step. Gradients are divided by the sum of those of all ranks.
struct LossWeights {
  double own = 0;      ///< sum of the weights of this rank's losses
  int64_t losses = 0;  ///< number of losses of all ranks
};

/// The parameters of one rank, in training. A step:
///
///   zero_grad();  reducer().begin(last) before each backward pass;  reducer().finish();  close_pass();  step();
///
/// If tensors are in an offload store (`offload`), one rank may fail alone, for example because its disk is full. It
/// then still takes part in the collectives of the step, and the ranks agree on the error. All ranks throw the error of
/// one rank, which the message names. They throw at three points: when the gradients are complete (read_before_step()
/// or step(), before any change), after the update, and in end_pass(). Rules that communicate have no agreement after
/// the update: their errors are of one rank and end the run. Communication: each agreement is one comm::agree() over
/// all ranks. If an update failed on any rank, its result is never saved: state() throws the error again.
class Optimization {
 public:
  /// Makes chunk store, reducer and optimizer. Reads [parallel] zero and its related keys, [precision], [memory],
  /// [optimizer] and [training] of `config`. `own` has the optimizers of models with one of their own. `offload` stores
  /// master weights, states, gradient shards and sharded parameters while they are not in use. Null: a
  /// memory::TieredStore if [memory] has tiers, otherwise they stay in memory.
  /// Communication: with tiers five times comm::agree(), and an all_reduce of 40 bytes over all ranks.
  /// Errors: as the optimizer. "memory", before any value is drawn or written: budgets smaller than a step needs
  ///         (check_budgets()). "memory": states_on_device with an optimizer that cannot update shards on the device.
  ///         Disk errors. With tiers, errors are the same on all ranks.
  Optimization(nn::Parameters& parameters, comm::Mesh& mesh, const run::Config& config,
               std::vector<OwnOptimizer> own = {}, std::shared_ptr<memory::OffloadStore> offload = nullptr);

  /// Sets all gradients to zero. Must be called before the first backward pass of each step. A forward pass that is
  /// under way belongs to the step. So the step begins here or with the first use of a sharded parameter after the last
  /// step.
  void zero_grad();
  /// Returns the factor by which losses must be multiplied before backward.
  double loss_scale() const { return loss_scale_.value(); }
  /// Returns the factor for a loss of that weight in a step of `losses` losses, if step() is then given their weights.
  double loss_scale(double weight, int64_t losses) const {
    return loss_scale_.value() * (weight / loss_scale_.weight_unit()) / static_cast<double>(losses);
  }
  /// Returns the values of all elements of `numbers`, in order. It also reads this rank's part of the gradient norm,
  /// which step() needs; gradients must be complete. So the host waits for the device here, and not in step(). Calls of
  /// store() or reducer() discard that part, because gradients may be changed through them.
  /// Collective if there is an offload store: an agreement.
  std::vector<double> read_before_step(const std::vector<at::Tensor>& numbers);
  /// From here on keeps values that code of the caller's writes into any parameter: see memory::ChunkStore::watch().
  void watch() { store_->watch(); }
  /// Keeps such values now, as step() does. Call it before other readers of shards. Errors: see
  /// memory::ChunkStore::keep_written().
  void keep_written() { store_->keep_written(); }
  /// Ends a pass: see memory::ChunkStore::close_pass(). A pass before the first backward pass of a step, for example an
  /// evaluation, does not belong to the step: predictions and measurements leave it out. Throws errors of the pass if
  /// there is no offload store. Otherwise read_before_step() or step() throws them.
  void close_pass();
  /// Ends a pass that no step follows, for example in evaluation. Collective if there is an offload store: an
  /// agreement.
  void end_pass();
  /// Throws errors of the pass so far. Collective if there is an offload store: an agreement.
  void check_pass() {
    agree([] {});
  }
  /// Clips, updates, and counts the step. With `weights` it first divides gradients of weighted losses, made with
  /// loss_scale(weight, losses), by the sum of the weights.
  /// Communication: one all_reduce of [1] over all ranks, with weights as optim::joint_norm_and_sum(); as the optimizer
  ///                and ChunkStore::updated(). With memory.device also as DeviceTrace::agree(), and if that returns
  ///                true two more all_reduces over all ranks, of 16 and 8 bytes.
  /// Errors: thrown before any change. RefusedStep("training"): gradients that are not finite, unless the loss scale is
  ///         the cause. "training": weights whose sum is 0 or not finite.
  ///         RefusedStep("memory"): a step needs more of the device than memory.device, with the smallest budget that
  ///         works.
  StepResult step(const std::optional<LossWeights>& weights = std::nullopt);
  int64_t steps_done() const { return steps_done_; }
  /// Returns the store of this rank's parameters, gradients and states; null without tiers.
  const memory::TieredStore* tiers() const { return tiers_.get(); }
  /// Returns the store of inputs of recomputed layers between forward and backward; null without memory.disk and
  /// memory.device.
  std::shared_ptr<nn::InputStore> inputs() const { return inputs_; }
  /// Returns the memory use of the device; none without memory.device.
  std::optional<DeviceUse> device_use() const;

  memory::ChunkStore& store() {
    own_norm_.reset();
    return *store_;
  }
  parallel::GradientReducer& reducer() {
    own_norm_.reset();
    has_gradients_ = true;
    begin_step();
    return reducer_;
  }

  /// Returns the tensors and the progress of a checkpoint, to be saved or filled. The tensors are optimizer states and
  /// the parameters that checkpoints keep (master weights, if there are any). The progress is the step, the optimizer's
  /// name and the loss scale. If some parameters are not saved, it also has model.from and the seed.
  checkpoint::TrainingState state();
  /// Continues from a filled state(). Communication: under ZeRO 1 and 2 an all_gather of the parameters.
  void loaded(const checkpoint::TrainingState& state);
  /// Checks the progress of a checkpoint. Errors ("optimizer"): it was saved with another optimizer; the message names
  /// both. "model": it omits parameters whose values came from another model.from or seed.
  void check_progress(const nlohmann::json& progress) const;
  /// Returns the elements that this rank updates of each parameter, under the parameter's name, ordered by shard, to be
  /// saved or filled. The caller must call weights_loaded() after filling them.
  std::vector<checkpoint::NamedTensor> weights() { return run::weights_of(*store_); }
  void weights_loaded();

 private:
  /// Runs work(). If there is an offload store, an error of work() or of an earlier pass on any rank is thrown on all
  /// ranks.
  void agree(const std::function<void()>& work);
  void rethrow();
  optim::NormOrder norm_order() const;
  StepResult clip_and_update(const std::optional<LossWeights>& weights);
  optim::NormAndSum norm_of(const std::optional<LossWeights>& weights);
  void update(const ModelOptimizers::Step& step, double scale);
  /// Returns the source of the values of parameters that are not saved.
  nlohmann::json origin() const;
  /// Starts the step of tiers and trace, unless it has begun.
  void begin_step();
  void end_passes();
  void settle_states();

  run::Config config_;
  std::vector<OwnOptimizer> own_;
  comm::Mesh& mesh_;
  TierNeeds needs_;  // zeros without tiers
  std::shared_ptr<memory::TieredStore> tiers_;
  std::shared_ptr<memory::InputsAt> inputs_;    // stores in tiers_
  std::shared_ptr<memory::DeviceTrace> trace_;  // null = the device has no budget
  std::unique_ptr<memory::ChunkStore> store_;
  parallel::GradientReducer reducer_;
  std::unique_ptr<ModelOptimizers> optimizers_;
  LossScale loss_scale_;
  std::optional<double> own_norm_;  // optim::own_norm() of the current gradients, not unscaled; none = not read
  bool in_step_ = false;            // true: tiers and trace are in a step
  bool has_gradients_ = false;      // true: a backward pass of the step has begun
  bool has_agreed_ = false;         // true: the ranks agreed on the gradients as the passes left them
  int64_t steps_done_ = 0;
  bool leaves_out_;                    // true: some parameter of the whole model is not saved
  std::optional<Error> half_updated_;  // the error of a failed update; none = no update failed
};

}  // namespace colossal::train
