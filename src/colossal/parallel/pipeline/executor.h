// Runs the list of one rank of a pipeline schedule, whichever it is:
//
//   PipelineExecutor executor(schedule::make_schedule(...), {&mesh, &copies, &deferred, options_of_hidden_states});
//   const StageFunction stage = [&](int index, int micro_batch, std::vector<at::Tensor> states) { ... };
//   executor.train(stage, {{.from = 0, .to = 1, .sizes = {rows, sequence, hidden}}}, {});
//
// What stages hand on has sizes that every rank computes for itself; no message carries them.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/nn/deferred_gradients.h"
#include "colossal/parallel/pipeline/passed_states.h"
#include "colossal/parallel/pipeline/step_times.h"
#include "colossal/parallel/pipeline/transfers.h"
#include "colossal/schedule/simulate.h"

namespace colossal::parallel {

/// What a stage computes: from the states that it reads, by index and otherwise undefined, to those that it leaves. The
/// last stage leaves the result of the model alone, in front: in training the scalar to go backward from.
using StageFunction =
    std::function<std::vector<at::Tensor>(int stage, int micro_batch, std::vector<at::Tensor> states)>;

/// Called before a step that makes gradients; `last`: no later one of this rank does.
using BeforeGradients = std::function<void(bool last)>;

class PipelineExecutor {
 public:
  /// Where the run touches the world outside of it.
  struct Surroundings {
    /// Its axis "pipeline" is the ranks of the pipeline in order; its world's phase is set for every step of training
    comm::Mesh* mesh;
    /// Ranks of one stage that hold the same hidden states: transfers are shared out among them
    comm::Group* copies;
    nn::DeferredGradients* deferred;  ///< of the model: what BackwardWeight runs
    at::TensorOptions hidden;         ///< of hidden states, unless a state says another dtype
    /// The first stage with something to train. Those before it run no backward pass and receive no gradient: a
    /// PassedState from one of them must have no gradient
    int first_trained = 0;
  };
  /// `schedule` must have passed schedule::check; it is for as many ranks as the axis "pipeline" has. Communication:
  /// see PipelineTransfers.
  PipelineExecutor(schedule::Schedule schedule, const Surroundings& surroundings);

  /// Forward and backward passes of all micro-batches; gradients add up in the parameters. Everything but Reduce and
  /// Update, which are the caller's: `before_gradients` is called before each step that makes some, and told whether it
  /// is the last one of this rank.
  ///
  /// `passed`: all that stages hand on of a micro-batch; the same on all ranks of the pipeline. A stage that reads a
  /// state and leaves it to another stage returns it.
  /// Gradients:     of a state that several stages read, their sum; of one that a stage makes nothing of, zeros. A
  ///                stage whose results have no gradient runs no backward pass.
  /// Communication: see PipelineTransfers; each part of a state's way (StateRoutes) between two ranks moves
  ///                micro-batches * elements forward, and as many back if the state has a gradient there.
  /// Memory:        a micro-batch's activations live from Forward to Backward or BackwardInput, then the inputs and
  ///                output gradients of its linear layers to BackwardWeight. A stage keeps nothing of a state that
  ///                it hands on unread.
  /// Errors:        of `stage` and of the transfers; "pipeline": a stage leaves a state undefined, or with other sizes
  ///                or another dtype than were said.
  ///                Afterwards nothing of the run is kept, but messages under way may fill the group: make a new one.
  void train(const StageFunction& stage, const std::vector<PassedState>& passed,
             const BeforeGradients& before_gradients);

  /// Forward passes of `micro_batches` without gradients, through pipe 0. Returns the last stage's results, on the rank
  /// that has it; elsewhere none.
  std::vector<at::Tensor> forward(const StageFunction& stage, int micro_batches,
                                  const std::vector<PassedState>& passed);

  /// The schedule that train() runs: without the backward passes of stages that have nothing to train.
  const schedule::Schedule& schedule() const { return schedule_; }
  int rank() const { return around_.mesh->index("pipeline"); }
  /// Of the last train(): when this rank did what, in list order (StepTimes). A compute step begins when its input is
  /// there: what lies between the event before and its begin is waiting. A receive only posts. Cost: on an accelerator
  /// the host waits for all that this rank's stream was given.
  std::vector<schedule::Event> events() const { return times_.events(rank()); }
  /// Of the last train(): most activations that were held at once, one being a micro-batch on all stages of this rank;
  /// what waits for BackwardWeight counts half.
  double peak_live() const { return peak_live_; }

 private:
  using Tensors = std::map<int, at::Tensor>;  // of states, by index in the routes
  struct Pass {                               // of a micro-batch through a chunk: what backward needs
    at::Tensor result;                        // of the last stage
    Tensors inputs, outputs;                  // those with a gradient
  };
  using Key = std::pair<int, int>;  // chunk, micro-batch
  void run(const std::vector<schedule::Step>& steps, const StageFunction& stage, std::vector<PassedState> passed,
           bool is_training, const BeforeGradients& before_gradients);
  void do_step(const schedule::Step& step, const StageFunction& stage, bool is_training);
  void send(const schedule::Step& step, std::map<Key, Tensors>& tensors);
  void post(const schedule::Step& step);
  void forward_step(const schedule::Step& step, const StageFunction& stage, bool is_training);
  void backward_step(const schedule::Step& step);
  /// Checks what a stage left of a state, and keeps it for backward if it has a gradient.
  void keep_output(Pass& pass, int stage, const StateRoutes::Stop& stop, const at::Tensor& output, bool is_training);
  /// Hands a state on, or its gradient back: to a chunk of this rank, or to a send of this step's chunk.
  void give(const schedule::Step& step, const StateRoutes::Stop& stop, const at::Tensor& x, bool is_forward);
  /// All that a step starts from: what was posted for it, and what other chunks of this rank left.
  Tensors take(const Key& key, const std::vector<StateRoutes::Stop>& stops, bool is_forward);
  void count_live();
  void clear();

  schedule::Schedule schedule_;
  Surroundings around_;
  PipelineTransfers transfers_;
  StateRoutes routes_;  // of the run
  // State of a run, by chunk and micro-batch:
  std::map<Key, Pass> passes_;
  std::map<Key, nn::DeferredGradients::Tasks> put_off_;
  std::map<Key, Tensors> inputs_, gradients_;                       // left by a chunk of this rank for another
  std::map<Key, schedule::Step> posted_inputs_, posted_gradients_;  // on their way from another rank
  std::map<Key, Tensors> outputs_, input_gradients_;                // to be sent
  std::vector<at::Tensor> results_;
  StepTimes times_;
  double peak_live_ = 0;
};

}  // namespace colossal::parallel
