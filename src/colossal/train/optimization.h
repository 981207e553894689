// From gradients to new parameters, whatever made the gradients: chunks, reduction, clipping, loss scale, update.
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
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/optim/gradient_norm.h"
#include "colossal/optim/optimizer.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/run/config.h"
#include "colossal/run/stored_weights.h"
#include "colossal/train/device_use.h"
#include "colossal/train/loss_scale.h"
#include "colossal/train/step_result.h"
#include "colossal/train/tier_needs.h"

namespace colossal::train {

/// The parameters of one rank, in training. A step:
///
///   zero_grad();  reducer().begin(last) before each backward pass;  reducer().finish();  close_pass();  step();
///
/// Where tensors lie in a home a rank may fail for reasons of its own: its disk. It goes on with what ranks do
/// together, and they agree on what went wrong, so that all throw the error of one, which names the rank, where they
/// have the gradients (read_before_step() or step(), before anything is changed), behind the update (but for rules that
/// communicate, whose errors are of one rank and end the run) and in end_pass(). Communication: that of comm::agree()
/// each, over all ranks. What an update left that failed on some rank is never saved: state() throws its error again.
class Optimization {
 public:
  /// Of `config`: [parallel] zero and what belongs to it, [precision], [memory], [optimizer], [training].
  /// `home`: of masters, states and shares of gradients, and of parameters that are shared out, while nobody works with
  /// them; null: a memory::TieredHome, with tiers of [memory], else they stay in memory.
  /// Communication: with tiers four times what comm::agree() sends, and an all_reduce of 40 bytes over all ranks.
  /// Errors: what the optimizer refuses; ("memory") before anything is drawn or written, budgets that are smaller than
  /// what a step needs (check_budgets()); states_on_device beside an accelerator; the disk's. Those of tiers are of all
  /// ranks at once.
  Optimization(nn::Parameters& parameters, comm::Mesh& mesh, const run::Config& config,
               std::shared_ptr<memory::Home> home = nullptr);

  void zero_grad() {
    own_norm_.reset();
    if (tiers_) tiers_->begin_step();
    if (trace_) trace_->begin_step();
    reducer_.zero();
  }
  /// What losses are to be multiplied by before they go backward.
  double loss_scale() const { return loss_scale_.value(); }
  /// The values of `numbers`, element after element, and on the way what step() has to know of the gradients, which
  /// are complete: the host waits for the device here, and not in step(). What it knows is forgotten when somebody asks
  /// for the store() or the reducer(), through which gradients may be changed.
  /// Collective where there is a home: an agreement.
  std::vector<double> read_before_step(const std::vector<at::Tensor>& numbers);
  /// A pass of a step is over: see memory::ChunkStore::close_pass(). What went wrong is thrown here where there is no
  /// home, else by read_before_step() or step().
  void close_pass();
  /// A pass is over that no step follows, in evaluation for instance. Collective where there is a home: an agreement.
  void end_pass();
  /// Clips, updates, and counts the step. Communication: one all_reduce of [1] over all ranks; that of the optimizer
  /// and of ChunkStore::updated(); with memory.device that of DeviceTrace::agree(),
  /// and where that has news all_reduces of 8 bytes, two over all ranks.
  /// Errors, before anything is changed: ("training") gradients that are not finite, unless the loss scale is to
  /// blame; ("memory") a step needs more of the device than memory.device, with the smallest that works, on all ranks.
  StepResult step();
  int64_t steps_done() const { return steps_done_; }
  /// Where parameters, gradients and states of this rank lie; null without tiers.
  const memory::TieredHome* tiers() const { return tiers_.get(); }
  /// Where inputs of recomputed blocks lie between forward and backward; null without memory.disk and memory.device.
  std::shared_ptr<nn::InputHome> inputs() const { return inputs_; }
  /// None without memory.device.
  std::optional<DeviceUse> device_use() const;

  memory::ChunkStore& store() {
    own_norm_.reset();
    return *store_;
  }
  parallel::GradientReducer& reducer() {
    own_norm_.reset();
    return reducer_;
  }

  /// Parameters (masters, where there are some) that checkpoints keep, optimizer states, the step and the optimizer's
  /// name: to be saved, or filled from a checkpoint. If some parameters are left out, also model.from and the seed.
  checkpoint::TrainingState state();
  /// Goes on from what state() returned, filled. Communication: under ZeRO 1 and 2 all_gather of the parameters.
  void loaded(const checkpoint::TrainingState& state);
  /// Errors ("optimizer"): a checkpoint of this progress is of another optimizer, naming both. ("model"): it leaves out
  /// parameters that came from another model.from or seed.
  void check_progress(const nlohmann::json& progress) const;
  /// What this rank updates of each parameter under the parameter's name, shard after shard, to be saved or filled;
  /// after filling, weights_loaded().
  std::vector<checkpoint::NamedTensor> weights() { return run::weights_of(*store_); }
  void weights_loaded();

 private:
  /// work(), and where there is a home it, and what went wrong in a pass before, throws on all ranks or on none.
  void agree(const std::function<void()>& work);
  void rethrow();
  optim::NormOrder norm_order() const;
  StepResult clip_and_update();
  void update(double rate, double scale);
  /// Where the values of parameters that are not saved come from.
  nlohmann::json origin() const;
  void end_passes();
  void settle_states();

  run::Config config_;
  comm::Mesh& mesh_;
  TierNeeds needs_;  // zeros without tiers
  std::shared_ptr<memory::TieredHome> tiers_;
  std::shared_ptr<memory::InputsAt> inputs_;    // in tiers_
  std::shared_ptr<memory::DeviceTrace> trace_;  // null: the device has no budget
  std::unique_ptr<memory::ChunkStore> store_;
  parallel::GradientReducer reducer_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  LossScale loss_scale_;
  std::optional<double> own_norm_;  // of the gradients as they are, times the loss scale
  bool has_agreed_ = false;         // on the gradients as the passes left them
  int64_t steps_done_ = 0;
  bool leaves_out_;                    // some parameter of the whole model is not saved
  std::optional<Error> half_updated_;  // why
};

}  // namespace colossal::train
