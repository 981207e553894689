#include "colossal/nn/running_step.h"

namespace colossal::nn {
namespace {

/// A variable of the thread and not an argument, because a product is given matrices alone, and autograd calls blocks
/// that are recomputed.
const RunningStep*& innermost() {
  thread_local const RunningStep* running = nullptr;
  return running;
}

}  // namespace

RunningStep::RunningStep(const ForwardContext& step, const OwnTokens& tokens)
    : step(step), tokens(tokens), before_(std::exchange(innermost(), this)) {}

RunningStep::~RunningStep() { innermost() = before_; }

const RunningStep* RunningStep::current() { return innermost(); }

}  // namespace colossal::nn
