// The step of the pass whose blocks run on this thread. Products of linear layers read it for what is drawn per token
// (nn/low_rank.h), because an Expand is given activations alone.
//
//   model.blocks[i].run = nn::with_running_step(std::move(model.blocks[i].run), layers);   // models::make_model
//   ...
//   const nn::RunningStep* running = nn::RunningStep::current();                           // inside the block
//   if (running && running->step.training) ...
#pragma once
#include <utility>

#include "colossal/nn/forward_context.h"
#include "colossal/nn/layers.h"

namespace colossal::nn {

/// Announces the step of a block on this thread during its lifetime. A block that is recomputed in backward announces
/// it again, on the thread that recomputes. The innermost scope applies.
class RunningStep {
 public:
  /// `tokens` returns the rows and tokens that this rank has between an Expand and its Contract
  /// (Layers::inside_tokens). Both must outlive the scope.
  RunningStep(const ForwardContext& step, const OwnTokens& tokens);
  ~RunningStep();
  RunningStep(const RunningStep&) = delete;
  RunningStep& operator=(const RunningStep&) = delete;

  /// Returns the innermost scope of this thread; null = no block runs.
  static const RunningStep* current();

  const ForwardContext& step;
  const OwnTokens& tokens;

 private:
  const RunningStep* before_;
};

/// Returns the block `run(states, step)` with its step announced.
template <class Run>
auto with_running_step(Run run, const Layers& layers) {
  return [run = std::move(run), tokens = layers.inside_tokens()](auto&& states, const ForwardContext& step) {
    const RunningStep running(step, tokens);
    return run(states, step);
  };
}

}  // namespace colossal::nn
