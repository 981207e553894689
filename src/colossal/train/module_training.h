// A torch::nn::Module of the user's own in training: replicated over ranks, its parameters, gradients and optimizer
// states shared out as [parallel] zero says.
//
//   const auto training = colossal::initialize(world, *module, config);     // every rank, with the same module
//   training->resume(folder);                                               // where there is a checkpoint
//   while (training->steps_done() < config.training.steps) {
//     training->zero_grad();
//     training->backward(loss_of(module->forward(training->input(x)), y));  // x, y: this rank's rows
//     training->step();
//   }
//   training->save(folder);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/config.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/step_result.h"

namespace torch::nn {
class Module;
}
namespace colossal::memory {
class ChunkStore;
}

namespace colossal::train {

class Optimization;

/// One rank's copy of a module in training. Made by initialize(). A step:
///
///   training->zero_grad();
///   for (each of the training.accumulate micro-batches)
///     training->backward(loss_of(module->forward(training->input(x)), y));   // the mean over this rank's rows
///   training->step();
///   print(training->mean(training->loss()));
///
/// The module stays as it was written: its forward is called as ever, and under ZeRO 3 whoever reads a parameter finds
/// it whole. All ranks call the same operators on parameters in the same order. Gradients are the business of this
/// class: no optimizer of torch, no zero_grad of the module's, one backward pass a micro-batch. A parameter that no
/// loss uses has a gradient of zeros, so it decays; one that is frozen is as it came, in the compute dtype, also when
/// saved. Module and world outlive it. After it, parameters keep their values, but under ZeRO 3 they have none: save()
/// before.
class ModuleTraining {
 public:
  ModuleTraining(comm::World& world, torch::nn::Module& module, const run::Config& config,
                 const std::function<void()>& first_pass, at::Device device);
  ~ModuleTraining();

  /// `tensor` as the module takes it: on the run's device, floating-point numbers in the compute dtype; integers stay
  /// integers. Nobody waits for the copy of a pinned one, which must then stay as it is until step() is over.
  at::Tensor input(const at::Tensor& tensor) const;

  /// No gradients, no micro-batches: before the first of a step.
  void zero_grad();
  /// Back through the loss of a micro-batch, a scalar: the mean over this rank's share of it, best computed in fp32.
  /// With the last micro-batch of the step, gradients are those of the mean of the losses of all ranks and
  /// micro-batches. Parameters are released (end_pass).
  ///
  /// Communication: see parallel::GradientReducer and memory::ChunkStore.
  /// Errors ("training"): a loss of more than one element or without a gradient; more calls than training.accumulate;
  /// before any communication.
  void backward(const at::Tensor& loss);
  /// Clips, updates, and counts the step: see Optimization::step.
  ///
  /// Cost: on an accelerator the host waits once, for the gradients' norm and loss() together, and nowhere else in a
  ///       step whose inputs are pinned.
  /// Errors ("training"): fewer backward passes than training.accumulate; gradients that are not finite.
  StepResult step();
  /// Of the last step(), on this rank: the mean over its micro-batches of what backward() was given. For that of all
  /// ranks see mean().
  double loss() const { return loss_; }
  /// Releases what ZeRO 3 gathered, but for what parallel.gathered_mib lets stay: after a forward without a backward,
  /// as in evaluation. Errors: of the gathers; under ZeRO 3 with tiers of [memory] that of one rank on all.
  /// Communication: there that of comm::agree().
  void end_pass();
  /// The mean of `value` over all ranks, for printing. Communication: all_reduce of [1].
  double mean(double value);

  int64_t steps_done() const;
  at::ScalarType dtype() const { return parameters_.options().dtype; }
  at::Device device() const { return parameters_.options().device; }
  const nn::Parameters& parameters() const { return parameters_; }
  memory::ChunkStore& store();

  /// Saves folder/step-<steps_done> and keeps the training.keep_last newest: parameters (masters, where there are some)
  /// and buffers as "model.<name>", optimizer, step, loss scale. Of buffers, which replicas do not share, rank 0's are
  /// kept. Generators are not saved. Collective. Errors: see checkpoint::save.
  void save(const std::string& folder);
  /// Goes on from the newest checkpoint in `folder` that rank 0 sees, saved under any number of ranks and any ZeRO.
  /// Gradients are zero then. Collective. Errors: none there; a newer step folder that is not complete; of another
  /// optimizer; see checkpoint::load. The same on all ranks, before anything is changed. After that: ranks that read
  /// different weights (require_same_weights()).
  void load(const std::string& folder);
  /// load(), if the folder holds a step. Returns whether it did. Collective. Errors: those of load().
  bool resume(const std::string& folder);

 private:
  using NamedBuffers = std::vector<std::pair<std::string, at::Tensor>>;
  class Saved;  // what checkpoints see of it
  void load(const Checkpoints& checkpoints, const checkpoint::StepFolders& steps);
  int64_t micro_batches_done() const { return static_cast<int64_t>(losses_.size()); }

  run::Config config_;
  comm::Mesh mesh_;
  nn::Parameters parameters_;
  NamedBuffers buffers_;
  std::unique_ptr<Optimization> optimization_;
  std::vector<at::Tensor> losses_;  // of the micro-batches so far
  double loss_ = 0;
};

/// Takes `module` over for training as [parallel] data and zero, [precision], [memory] without recompute, [optimizer],
/// [training] and [run] device of `config` say; other sections are not read. Every rank gives the same module:
/// parameters and buffers start with rank 0's values. Parameters, trained, frozen (requires_grad false) or shared by
/// submodules, and floating-point buffers get the compute dtype; matrices and larger decay (optimizer.weight_decay),
/// vectors, that is biases and norms, do not. Whoever is frozen stays frozen. Rules for matrices (muon) treat every
/// parameter of two dimensions or more but the tables of torch::nn::Embedding; of heads they know nothing.
///
/// `first_pass`: runs the module forward once, on the run's device and in the module's own dtype, so that parameters
/// are packed in the order of their first use; without it, in the order of registration. It is called once on every
/// rank, without gradients and before anything is sent, and leaves buffers as they were.
///
/// `device`: of the parameters; none: that of [run] device.
///
/// Bytes:         those of memory::ChunkStore; while it is made, one copy of the module more.
/// Communication: collective among all ranks of `world`; three all_reduces of 16 bytes, a broadcast of every parameter
///                and buffer, and with `first_pass` of an integer a parameter.
/// Errors, the same on all ranks and before a parameter is sent: ranks with different programs, configs or modules
///         (train/rank_inputs.h); tensor or pipeline parallelism, mode fp8, recomputation (they need layers of this
///         library); world.size() that is not parallel.data; a module without trained parameters, or with some that are
///         no floating-point leaves; a group of [optimizer.groups] that names none; what Config::validate() refuses.
std::unique_ptr<ModuleTraining> initialize(comm::World& world, torch::nn::Module& module, const run::Config& config,
                                           const std::function<void()>& first_pass = {},
                                           std::optional<at::Device> device = {});

}  // namespace colossal::train

namespace colossal {

/// What a program that trains a module of its own needs to name.
using run::Config;
using train::initialize;
using train::ModuleTraining;

}  // namespace colossal
