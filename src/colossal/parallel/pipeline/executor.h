// Runs the list of one rank of a pipeline schedule, whichever it is:
//
//   PipelineExecutor executor(schedule::make_schedule(...), {&mesh, &copies, &deferred, options_of_hidden_states});
//   executor.train([&](int stage, int micro_batch, const at::Tensor& input) { return forward_of(stage, input); },
//                  {rows, sequence, hidden}, {});
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
#include "colossal/parallel/pipeline/step_times.h"
#include "colossal/parallel/pipeline/transfers.h"
#include "colossal/schedule/simulate.h"

namespace colossal::parallel {

/// What a stage computes. `input` is the hidden state that the stage before made of this micro-batch, undefined for the
/// first stage. The last stage's result is that of the model: in training the scalar to go backward from. All others
/// return a hidden state of the sizes that train() or forward() was given.
using StageFunction = std::function<at::Tensor(int stage, int micro_batch, const at::Tensor& input)>;

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
    at::TensorOptions hidden;         ///< of hidden states
    /// The first stage with something to train. Those before it run no backward pass and receive no gradient
    int first_trained = 0;
  };
  /// `schedule` must have passed schedule::check; it is for as many ranks as the axis "pipeline" has. Communication:
  /// see PipelineTransfers.
  PipelineExecutor(schedule::Schedule schedule, const Surroundings& surroundings);

  /// Forward and backward passes of all micro-batches; gradients add up in the parameters. Everything but Reduce and
  /// Update, which are the caller's: `before_gradients` is called before each step that makes some, and told whether it
  /// is the last one of this rank.
  ///
  /// `hidden_sizes`: of what each stage but the last hands on of a micro-batch, as this rank holds it; equal on all
  /// ranks of the pipeline.
  /// Communication: see PipelineTransfers; each boundary moves 2 * micro-batches * (elements of a micro-batch's hidden
  ///                state) in all.
  /// Memory:        a micro-batch's activations live from Forward to Backward or BackwardInput, then the inputs and
  ///                output gradients of its linear layers to BackwardWeight.
  /// Errors:        of `stage` and of the transfers; "pipeline": a stage hands on other sizes than were said.
  ///                Afterwards nothing of the run is kept, but messages under way may fill the group: make a new one.
  void train(const StageFunction& stage, const std::vector<int64_t>& hidden_sizes,
             const BeforeGradients& before_gradients);

  /// Forward passes of `micro_batches` without gradients, through pipe 0. Returns the last stage's results, on the rank
  /// that has it; elsewhere none.
  std::vector<at::Tensor> forward(const StageFunction& stage, int micro_batches,
                                  const std::vector<int64_t>& hidden_sizes);

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
  struct Pass {  // of a micro-batch through a chunk
    at::Tensor input, output;
  };
  using Key = std::pair<int, int>;  // chunk, micro-batch
  void run(const std::vector<schedule::Step>& steps, const StageFunction& stage,
           const std::vector<int64_t>& hidden_sizes, bool is_training, const BeforeGradients& before_gradients);
  void do_step(const schedule::Step& step, const StageFunction& stage, bool is_training);
  void forward_step(const schedule::Step& step, const StageFunction& stage, bool is_training);
  void backward_step(const schedule::Step& step);
  void count_live();
  void clear();
  /// The chunk of this rank that has the stage `distance` further on in the pipe of `chunk`, or -1 where another rank
  /// has it or there is none.
  int chunk_at(int chunk, int distance) const;
  /// The input of a step: what was posted for it, or what another chunk of this rank left.
  at::Tensor take(std::map<Key, at::Tensor>& handed, std::map<Key, schedule::Step>& posted, const Key& key);

  schedule::Schedule schedule_;
  Surroundings around_;
  PipelineTransfers transfers_;
  std::vector<int64_t> hidden_sizes_;  // of the run
  // Of a run, by chunk and micro-batch:
  std::map<Key, Pass> passes_;
  std::map<Key, nn::DeferredGradients::Tasks> put_off_;
  std::map<Key, at::Tensor> inputs_, gradients_;                    // left by a chunk of this rank for another
  std::map<Key, schedule::Step> posted_inputs_, posted_gradients_;  // on their way from another rank
  std::map<Key, at::Tensor> outputs_, input_gradients_;             // to be sent
  std::vector<at::Tensor> results_;
  StepTimes times_;
  double peak_live_ = 0;
};

}  // namespace colossal::parallel
