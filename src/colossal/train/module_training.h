// Training of a module that the caller supplies: a torch::nn::Module, or one of another language. It is replicated over
// the ranks; its parameters, gradients and optimizer states are sharded as [parallel] zero specifies.
//
//   const auto training = colossal::initialize(world, *module, config);     // every rank, with the same module
//   training->resume(folder);                                               // if there is a checkpoint
//   while (training->steps_done() < config.training.steps) {
//     training->zero_grad();
//     training->backward(loss_of(module->forward(training->input(x)), y));  // x, y: this rank's part of a micro-batch
//     training->step();
//   }
//   training->save(folder);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/comm/mesh.h"
#include "colossal/nn/parameter.h"
#include "colossal/run/config.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/device_use.h"
#include "colossal/train/first_values.h"
#include "colossal/train/gathered.h"
#include "colossal/train/module_tensors.h"
#include "colossal/train/step_result.h"
#include "colossal/train/whole_tensors.h"

namespace torch::nn {
class Module;
}
namespace colossal::memory {
class ChunkStore;
}

namespace colossal::train {

class MicroBatches;
class ModuleCheckpoints;
class ModuleRecord;
class Optimization;

/// One rank's replica of a module in training. Made by initialize(). A step:
///
///   training->zero_grad();
///   for (each of the training.accumulate micro-batches)
///     training->backward(loss_of(module->forward(training->input(x)), y));   // the mean over this rank's rows
///   training->step();
///   print(training->mean(training->loss()));
///
/// The module needs no changes: its forward is called as usual, and under ZeRO 3 every parameter that is read is
/// gathered first. All ranks must call the same operators on parameters in the same order. This class manages the
/// gradients: callers use no torch optimizer, do not call the module's zero_grad(), and run one backward pass per
/// micro-batch. Values that the caller writes into parameters, in place or with set_data(), are kept, also in
/// checkpoints; every rank must write the same ones. A parameter that no loss uses has a gradient of zeros, so it
/// decays. A frozen parameter keeps its value, in the compute dtype, also in checkpoints. Module and world must outlive
/// this object. After its destruction parameters keep their values, except under ZeRO 3, where they have none and
/// refuse access: call save() before.
class ModuleTraining {
 public:
  /// Use initialize(), which also checks that the ranks have the same inputs.
  ModuleTraining(comm::World& world, const ModuleTensors& tensors, const run::Config& config,
                 const std::function<void()>& first_pass, at::Device device, const FirstValues& values);
  ~ModuleTraining();

  /// Returns `tensor` as the module needs it: on the run's device, with floating-point values in the compute dtype.
  /// Integers keep their dtype. The host does not wait for the copy of a pinned tensor, which must then stay unchanged
  /// until step() returns.
  at::Tensor input(const at::Tensor& tensor) const;

  /// Clears gradients and the count of micro-batches. Must be called before the first backward() of a step, before or
  /// after its forward.
  void zero_grad();
  /// Runs backward from the loss of a micro-batch: a scalar, the mean over this rank's rows of it, preferably computed
  /// in fp32. tensor::ReplicaRows says which rows of a global batch these are; others change the order of samples only.
  /// After the last micro-batch of the step, gradients are derivatives of sum(weight * loss) / sum(weight) over all
  /// ranks and micro-batches. With equal weights that is the mean loss. If `weight` is the number of tokens of which
  /// the loss is the mean, uneven batches have the gradient of the mean over all tokens. A micro-batch without a token
  /// has weight 0; its loss may be NaN, but not its gradient. Releases gathered parameters (end_pass()).
  ///
  /// Communication: see parallel::GradientReducer and memory::ChunkStore.
  /// Errors ("training"): a loss with more than one element or without a gradient; a weight that is negative or not
  /// finite; more calls than training.accumulate. They are thrown before any communication.
  void backward(const at::Tensor& loss, double weight = 1);
  /// Clips, updates, and counts the step: see Optimization::step().
  ///
  /// Cost: with an accelerator the host waits once, for the gradient norm and loss() together. It waits nowhere else in
  ///       a step whose inputs are pinned.
  /// Communication: the sum of weights is part of the all_reduce of the gradient norm
  ///                (optim::joint_norm_and_sum()).
  /// Errors ("memory"): a parameter that got another shape, dtype or device.
  /// ("training"): fewer backward passes than training.accumulate; gradients that are not finite; weights whose
  ///       sum over all ranks is 0. Those of one rank are thrown on all ranks.
  StepResult step();
  /// Returns this rank's loss of the last step(): the mean over its micro-batches of the losses passed to backward(),
  /// by their weights; NaN if these are all 0. For the mean over all ranks see mean().
  double loss() const;
  /// Releases the parameters that ZeRO 3 gathered, except those that parallel.max_gathered_mib keeps. Must be called
  /// after a forward without a backward, as in evaluation. Errors: of the gathers; under ZeRO 3 with tiers of [memory]
  /// the error of one rank on all ranks.
  /// Communication: in that case as comm::agree().
  void end_pass();
  /// Returns the mean of `value` over all ranks, for logging. Communication: all_reduce of [1].
  double mean(double value);

  /// Makes `parameters`, handles of the module's parameters (none = all), whole until the returned scope ends, for code
  /// that reads or writes memory by address. All ranks must open the same scopes in the same order, between the same
  /// operators.
  ///
  /// Communication: as a use of the parameters: under ZeRO 3 an all_gather of each chunk that holds one of them; with
  ///                tiers of [memory] also as comm::agree().
  /// Memory:        their chunks at once, whatever max_gathered_mib is. They count for memory.device.
  /// Errors ("training"), before any communication: a tensor that is no parameter of the module. Errors of gathers;
  /// with tiers of [memory] the error of one rank on all ranks.
  Gathered gathered(std::span<const at::Tensor> parameters = {});
  /// Returns a reader of all parameters and buffers, whole, on the host of every rank, one at a time.
  WholeTensors named_tensors();
  /// Writes the weights for transformers, tensor by tensor, without a config.json: see train::save_weights().
  /// Collective.
  void save_pretrained(const std::string& folder, const std::vector<std::pair<std::string, std::string>>& names = {},
                       std::optional<at::ScalarType> dtype = {}, int64_t max_file_bytes = int64_t{5'000'000'000});

  /// Writes what `colossal train` writes to its run folder, from the next step() on: config.toml, metrics.jsonl and the
  /// files beside it, of which `colossal report` makes a report. Call it after resume(): a training that continues
  /// keeps the rows up to its step, another one starts the files anew. Every step() then ends with an all_gather of 32
  /// bytes per rank. `module` and `command`: see RecordedStart. Collective. Errors: see ModuleRecord.
  void record(const std::string& folder, const std::string& module = "module",
              const std::vector<std::string>& command = {});
  /// Adds a value to the record of the last step, until zero_grad(): see ModuleRecord::note(). Does nothing without
  /// record().
  void note(const std::string& name, double value);

  int64_t steps_done() const;
  at::ScalarType dtype() const { return parameters_.options().dtype; }
  at::Device device() const { return parameters_.options().device; }
  const nn::Parameters& parameters() const { return parameters_; }
  memory::ChunkStore& store();
  /// Returns the memory use of the device; none without memory.device.
  std::optional<DeviceUse> device_use() const;

  /// Saves folder/step-<steps_done> and keeps the training.keep_last newest checkpoints. Saves parameters (master
  /// weights, if there are any) and buffers as "model.<name>", optimizer states, step, loss scale, and the states of
  /// LibTorch's default generators of every rank (train/generator_states.h). Replicas do not synchronize buffers, so
  /// rank 0's are saved. `extra` is a small value of the caller's, for example the epoch and the position in the data;
  /// rank 0's is saved, null = none. Collective. Communication: a broadcast of each buffer. Errors: see
  /// checkpoint::save(), also while another process writes to the folder.
  void save(const std::string& folder, const nlohmann::json& extra = {});
  /// Continues from the newest checkpoint in `folder` that rank 0 sees, saved with any number of ranks and any ZeRO
  /// stage. Generators are restored if it was saved with the same number of ranks; a module with dropout then continues
  /// bitwise. Gradients are zero afterwards. The result is the same on every rank. Collective. Errors: no checkpoint; a
  /// newer step folder that is incomplete; a checkpoint with another optimizer; see checkpoint::load(). They are the
  /// same on all ranks, and are thrown before any change. After the load: a generator's state that LibTorch
  /// refuses; ranks that read different weights (require_same_weights()).
  Resumed load(const std::string& folder);
  /// Calls load() if the folder holds a step; otherwise returns none. Collective. Errors: as load().
  std::optional<Resumed> resume(const std::string& folder);

 private:
  void require_no_scope(const char* function) const;
  /// Continues after load() has restored another step.
  void resumed();
  ModuleCheckpoints checkpoints_in(const std::string& folder, const ModuleTensors::Named& buffers);

  run::Config config_;
  comm::Mesh mesh_;
  nn::Parameters parameters_;
  ModuleTensors::Named buffers_;
  std::unique_ptr<Optimization> optimization_;
  std::unique_ptr<MicroBatches> micro_batches_;
  std::unique_ptr<ModuleRecord> record_;       // null = off
  std::string recorded_in_, recorded_module_;  // arguments of record()
  std::vector<std::string> recorded_command_;
  std::shared_ptr<int> open_scopes_ = std::make_shared<int>(0);  // number of Gathered scopes that exist
};

/// Prepares `module` for training. Reads [parallel] data and zero, [precision], [memory] without recompute,
/// [optimizer], [training] and [run] device of `config`; other sections are ignored. Every rank must pass the same
/// module; parameters and buffers start with rank 0's values. Parameters may be trained, frozen (requires_grad false)
/// or shared by submodules. They get the compute dtype, as do floating-point buffers. Parameters with two or more
/// dimensions have weight decay (optimizer.weight_decay); vectors, which are biases and norms, do not. Frozen
/// parameters stay frozen. Rules for matrices (muon) treat every parameter with two or more dimensions as a matrix,
/// except the tables of torch::nn::Embedding. They cannot detect heads.
///
/// `first_pass` runs the module's forward once, on the run's device and in the module's own dtype. Then parameters are
/// packed in the order of their first use; without it, in the order of registration. It is called once on every rank,
/// without gradients and before any communication of parameters. Buffers are restored after it.
///
/// `device` is the device of the parameters; none = as [run] device.
///
/// Bytes:         as memory::ChunkStore; during construction one more copy of the module.
/// Communication: collective among all ranks of `world`: three all_reduces of 16 bytes and one of 8, a broadcast of
///                every parameter and buffer, and with `first_pass` a broadcast of one integer per parameter.
/// Errors:        the same on all ranks, before any parameter is sent. Ranks with different programs, configs or
///                modules (train/rank_inputs.h). Tensor, pipeline, sequence or expert parallelism, mode fp8 or
///                recomputation, which need layers of this library. A world.size() that is not parallel.data. A module
///                without trained parameters, or with some that are not floating-point leaves. A group of
///                [optimizer.groups] that matches no parameter. A config that Config::validate() refuses.
std::unique_ptr<ModuleTraining> initialize(comm::World& world, torch::nn::Module& module, const run::Config& config,
                                           const std::function<void()>& first_pass = {},
                                           std::optional<at::Device> device = {});
/// Does the same for a module that is given by its tensors, for example one written in Python. Tables are
/// `tensors.tables`. Parameters, buffers and their handles are the module's own; see ModuleTensors.
///
/// Parameters may be on meta, so that a module larger than memory can be trained. `values` then replaces them and gives
/// them values, chunk by chunk. All errors of checks are thrown before the module is changed; an error after that
/// leaves it without values.
/// Bytes:  as memory::ChunkStore and, while values are set, one tensor of `weights` or the parameters of one submodule.
/// Errors: those of train/fill_module.h.
std::unique_ptr<ModuleTraining> initialize(comm::World& world, const ModuleTensors& tensors, const run::Config& config,
                                           const std::function<void()>& first_pass = {},
                                           std::optional<at::Device> device = {}, const FirstValues& values = {});

}  // namespace colossal::train

namespace colossal {

/// Names for programs that train their own module.
using run::Config;
using train::FirstValues;
using train::initialize;
using train::ModuleTensors;
using train::ModuleTraining;
using train::Resumed;

}  // namespace colossal
