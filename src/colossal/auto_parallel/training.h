// Training of any torch::nn::Module under a plan: its operators are divided over the axes `data` and `tensor`.
//
//   const auto loss = [&](const std::vector<at::Tensor>& in) { return torch::mse_loss(net->forward(in[0]), in[1]); };
//   const auto training = colossal::auto_parallel::initialize(world, *net, loss, {points, targets}, config);
//   while (training->steps_done() < config.training.steps) {
//     training->zero_grad();
//     training->backward(batch_of(training->replica(), training->replicas()));   // this replica's rows
//     training->step();
//   }
//   training->gather();                                                          // whole parameters back in *net
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/traffic.h"
#include "colossal/comm/world.h"
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
namespace colossal::plan {
struct Plan;
}

namespace colossal::auto_parallel {

/// Options of the solver in addition to the config.
struct AutoOptions {
  /// Specs that parameters and nodes must have: {{"fc1.weight", "[tensor, R]"}}. graph.json has the names.
  std::map<std::string, std::string> annotate{};
  bool share_blocks = true;             ///< repeated blocks ("layers.0.fc1", "layers.1.fc1") share one strategy
  std::string cluster = "h100-8x";      ///< hardware that sets the prices: a name, a profile's file, or `this`
  int64_t memory = 0;                   ///< bytes of a rank that the plan may take; 0 = no limit
  std::vector<int64_t> whole_inputs{};  ///< indices of inputs that have no rows: every rank passes all of them
};

/// One rank of a module in training under a plan. Made by auto_parallel::initialize().
///
/// The module gives the graph, the names and the initial values. Its forward is not called after the trace; the plan's
/// operators run instead, on this rank's blocks. Its parameters have no memory until gather(). Losses, gradients and
/// running statistics are those of one process on all rows, up to rounding. Control flow of the module, train() and
/// eval() are those of the trace.
class AutoTraining {
 public:
  /// Use auto_parallel::initialize().
  struct State;
  explicit AutoTraining(std::unique_ptr<State> state);
  ~AutoTraining();

  /// Returns the index and the number of the replicas, which read different rows: those along `data`. Ranks along
  /// `tensor` must get the same rows. tensor::ReplicaRows says which rows of a micro-batch a replica has.
  int64_t replica() const;
  int64_t replicas() const;

  /// Clears gradients and the count of micro-batches. Must be called before the first micro-batch of a step.
  void zero_grad();
  /// Runs the sharded graph and its backward pass on this replica's rows of a micro-batch. Inputs are moved to the
  /// run's device, and floating-point ones to the compute dtype.
  ///
  /// Communication: predicted_traffic(), and after the last micro-batch the sums of gradients (GradientReducer).
  /// Errors, before any communication: an input of another shape than traced ("auto_parallel"), with both shapes; more
  ///         calls than training.accumulate ("training").
  void backward(const std::vector<at::Tensor>& inputs);
  /// Clips, updates, and counts the step, as ModuleTraining::step() does.
  train::StepResult step();
  /// Returns the loss of the last step(), of the rows of all ranks: the mean over its micro-batches. It is equal on all
  /// ranks.
  double loss() const;
  int64_t steps_done() const;

  /// Writes the current parameters and buffers, whole, into the module on every rank. Training may go on; the module
  /// then keeps the values of this call. Collective. Communication: an all_gather of each parameter that is divided.
  void gather();

  const nn::Parameters& parameters() const;
  memory::ChunkStore& store();
  const plan::Plan& plan() const;
  /// Returns the traffic of one micro-batch, without the sums of the parameters' gradients, by group, collective and
  /// phase, as comm::Traffic counts it. `elements` are 0.
  std::map<comm::Traffic::Key, comm::Traffic::Count> predicted_traffic() const;
  /// Returns the bytes that this rank sends in all_reduces of gradients in a step, by group ("data", "data+tensor").
  /// Valid without ZeRO, tiers and compression.
  std::map<std::string, comm::Traffic::Count> predicted_gradient_traffic();

  /// Save and load checkpoints with the names and the format of ModuleTraining: a checkpoint moves to another mesh, to
  /// another plan, and to ModuleTraining. Collective. Errors: as ModuleTraining's.
  void save(const std::string& folder);
  void load(const std::string& folder);
  /// Calls load() if the folder holds a step; otherwise returns none.
  std::optional<train::Resumed> resume(const std::string& folder);

 private:
  std::unique_ptr<State> state_;
};

/// Traces `loss`, finds a plan for the mesh of [parallel] data and tensor, and prepares training under it. With
/// [parallel] auto every mesh of the ranks is tried. Reads [parallel] data, tensor, zero and plan, [precision],
/// [memory] without recompute, [optimizer], [training] and [run] of `config`.
///
/// `loss` is a function of the inputs that returns a scalar. `inputs` are an example of a whole micro-batch: their
/// shapes and dtypes count. Dimension 0 has its rows, which `data` divides. Every rank must pass the same module; it
/// starts with rank 0's values. Module and world must outlive the result.
///
/// Files: rank 0 writes graph.json and plan.json into run.folder.
/// Communication: collective among all ranks: a broadcast of every parameter and buffer, comparisons of program,
///                config, module and graph, a broadcast of the plan.
/// Errors, the same on all ranks: pipeline, sequence or expert parallelism, a tensor mode other than 1d, fp8,
///         recomputation; operators that cannot be traced; an annotation of an unknown name, with the nearest, or with
///         a spec that no strategy has, with the legal ones; a plan file of another graph or mesh; no plan that fits.
std::unique_ptr<AutoTraining> initialize(comm::World& world, torch::nn::Module& module,
                                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& loss,
                                         const std::vector<at::Tensor>& inputs, const run::Config& config,
                                         const AutoOptions& options = {});

}  // namespace colossal::auto_parallel

namespace colossal {

using auto_parallel::AutoOptions;
using auto_parallel::AutoTraining;

}  // namespace colossal
