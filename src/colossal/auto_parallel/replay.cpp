#include "colossal/auto_parallel/replay.h"

#include <map>

#include "colossal/auto_parallel/heard_call.h"
#include "colossal/base/error.h"

namespace colossal::automatic {

std::vector<at::Tensor> run_operator(const TracedOperator& run, const std::vector<at::Tensor>& operands) {
  std::vector<c10::IValue> arguments = run.arguments;
  for (const TracedOperator::Place& place : run.places)
    put_tensor(arguments, place.argument, place.element, operands.at(place.operand));
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  run.handle->callBoxed(stack);
  return tensors_of(std::vector<c10::IValue>(stack.begin(), stack.end()));
}

at::Tensor replay(const TracedModule& traced, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> values(traced.operators.size());
  std::map<int, std::vector<at::Tensor>> calls;
  for (size_t i = 0; i < traced.operators.size(); ++i) {
    const TracedOperator& run = traced.operators[i];
    if (run.input >= 0) {
      require(run.input < static_cast<int>(inputs.size()), "auto_parallel", "the graph must get the inputs it was ",
              "traced with: got ", inputs.size(), ", it reads input ", run.input);
      values[i] = inputs[run.input];
    } else if (!run.handle) {
      values[i] = run.constant;
    } else {
      auto found = calls.find(run.call);
      if (found == calls.end()) {
        std::vector<at::Tensor> operands;
        for (const plan::Source source : traced.graph.operands[i])
          operands.push_back(source.is_parameter ? traced.parameters[source.index] : values[source.index]);
        found = calls.emplace(run.call, run_operator(run, operands)).first;
      }
      values[i] = found->second.at(run.result);
    }
  }
  return values.back();
}

}  // namespace colossal::automatic
