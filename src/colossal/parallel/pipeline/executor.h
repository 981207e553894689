// Runs one rank's list of any pipeline schedule:
//
//   PipelineExecutor executor(schedule::make_schedule(...), {&mesh, &copies, &deferred, options_of_hidden_states});
//   const StageFunction stage = [&](int index, int micro_batch, std::vector<at::Tensor> states) { ... };
//   executor.train(stage, {{.from = 0, .to = 1, .sizes = {rows, sequence, hidden}}}, {});
//
// Every rank computes the sizes of the states that stages pass on, so no message contains them.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/deferred_gradients.h"
#include "colossal/parallel/pipeline/op_times.h"
#include "colossal/parallel/pipeline/transfers.h"
#include "colossal/schedule/simulate.h"

namespace colossal::parallel {

/// The computation of a stage. It gets the states that the stage reads, by index, with all others undefined, and
/// returns the states that it leaves. The last stage returns the result of the model alone, at index 0; in training
/// this is the scalar from which backward starts.
using StageFunction =
    std::function<std::vector<at::Tensor>(int stage, int micro_batch, std::vector<at::Tensor> states)>;

/// Called before a step that makes gradients; `last` is true if no later step of this rank makes any.
using BeforeGradients = std::function<void(bool last)>;

class PipelineExecutor {
 public:
  /// The objects of the run that the executor uses; those that pointers name must outlive it.
  struct Surroundings {
    /// mesh whose axis "pipeline" holds the ranks of the pipeline in order; its world's phase is set for every
    /// training step
    comm::Mesh* mesh;
    /// ranks of one stage that hold the same hidden states; transfers are split among them
    comm::Group* copies;
    nn::DeferredGradients* deferred;  ///< deferred gradients of the model, which BackwardWeight computes
    at::TensorOptions hidden;         ///< options of hidden states, unless a state has another dtype
    /// first stage with trainable parameters. Earlier stages run no backward pass and receive no gradient, so a
    /// PassedState from one of them must have no gradient
    int first_trained = 0;
  };
  /// `schedule` must have passed schedule::check, and be for as many ranks as the axis "pipeline" has. Communication:
  /// see PipelineTransfers.
  PipelineExecutor(schedule::Schedule schedule, const Surroundings& surroundings);

  /// Runs the forward and backward passes of all micro-batches; gradients are added to the parameters' gradients. The
  /// caller runs Reduce and Update. `before_gradients` is called before each step that makes gradients; its argument
  /// is true for the last such step of this rank.
  ///
  /// `passed` lists all states that stages pass on for a micro-batch; it is the same on all ranks of the pipeline. A
  /// stage that reads a state and leaves it to another stage returns it.
  /// Gradients:     a state that several stages read gets the sum of their gradients; a state that a stage does not use
  ///                gets zeros. A stage whose results have no gradient runs no backward pass.
  /// Communication: see PipelineTransfers. Each part of a state's route (StateRoutes) between two ranks moves
  ///                micro-batches * elements forward, and as many back if the state has a gradient there.
  /// Memory:        a micro-batch's activations are kept from Forward to Backward or BackwardInput. After
  ///                BackwardInput the inputs and output gradients of its linear layers are kept until BackwardWeight.
  ///                A stage keeps nothing of a state that it passes on unread.
  /// Errors:        errors of `stage` and of the transfers. Throws "pipeline" if a stage leaves a state undefined, or
  ///                with other sizes or another dtype than given. After an error the executor holds no data of the
  ///                run, but messages in transit may still occupy its groups: make new groups.
  void train(const StageFunction& stage, const std::vector<PassedState>& passed,
             const BeforeGradients& before_gradients);

  /// Runs forward passes of `micro_batches` without gradients, through pipe 0. Returns the last stage's results on the
  /// rank that holds this stage, and nothing on other ranks.
  std::vector<at::Tensor> forward(const StageFunction& stage, int micro_batches,
                                  const std::vector<PassedState>& passed);

  /// Returns the schedule that train() runs: without the backward passes of stages that have nothing to train.
  const schedule::Schedule& schedule() const { return schedule_; }
  int rank() const { return around_.mesh->index("pipeline"); }
  /// Returns the times of this rank's steps in the last train(), in list order (OpTimes). A compute step begins when
  /// its input is available, so the time since the previous event was spent waiting. A receive is only posted. Cost:
  /// on an accelerator the host waits for all work on this rank's stream.
  std::vector<schedule::Event> events() const { return times_.events(rank()); }
  /// Returns the maximum number of activations that were held at once in the last train(). The unit is a micro-batch
  /// on all stages of this rank. A micro-batch that waits for BackwardWeight counts half.
  double peak_live() const { return peak_live_; }

 private:
  using Tensors = std::map<int, at::Tensor>;  // states by index in the routes
  struct Pass {                               // pass of a micro-batch through a chunk: the tensors that backward needs
    at::Tensor result;                        // result of the last stage; else undefined
    Tensors inputs, outputs;                  // states with a gradient
  };
  using Key = std::pair<int, int>;  // chunk, micro-batch
  void run(const std::vector<schedule::PipelineOp>& steps, const StageFunction& stage, std::vector<PassedState> passed,
           bool is_training, const BeforeGradients& before_gradients);
  void do_step(const schedule::PipelineOp& step, const StageFunction& stage, bool is_training);
  void send(const schedule::PipelineOp& step, std::map<Key, Tensors>& tensors);
  void post(const schedule::PipelineOp& step);
  void forward_step(const schedule::PipelineOp& step, const StageFunction& stage, bool is_training);
  void backward_step(const schedule::PipelineOp& step);
  /// Checks a state that a stage left, and keeps it for backward if it has a gradient.
  void keep_output(Pass& pass, int stage, const StateRoutes::Stop& stop, const at::Tensor& output, bool is_training);
  /// Passes a state on, or its gradient back: to a chunk of this rank, or to a send of this step's chunk.
  void give(const schedule::PipelineOp& step, const StateRoutes::Stop& stop, const at::Tensor& x, bool is_forward);
  /// Returns all inputs of a step: tensors received for it, and tensors that other chunks of this rank left.
  Tensors take(const Key& key, const std::vector<StateRoutes::Stop>& stops, bool is_forward);
  void count_live();
  void clear();

  schedule::Schedule schedule_;
  Surroundings around_;
  PipelineTransfers transfers_;
  StateRoutes routes_;  // routes of the current run
  // State of a run, by chunk and micro-batch:
  std::map<Key, Pass> passes_;
  std::map<Key, nn::DeferredGradients::Tasks> put_off_;
  std::map<Key, Tensors> inputs_, gradients_;                             // tensors that a chunk of this rank left for
                                                                          // another
  std::map<Key, schedule::PipelineOp> posted_inputs_, posted_gradients_;  // receives in transit from another rank
  std::map<Key, Tensors> outputs_, input_gradients_;                      // tensors to be sent
  std::vector<at::Tensor> results_;
  OpTimes times_;
  double peak_live_ = 0;
};

}  // namespace colossal::parallel
