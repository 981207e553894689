#include "colossal/trace/trace.h"

#include <c10/core/GradMode.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/trace/heard_call.h"
#include "colossal/trace/module_on_meta.h"
#include "colossal/trace/tracer.h"

namespace colossal::trace {
namespace {

thread_local Tracer* listener = nullptr;

/// Makes a tracer the one of this thread during its lifetime.
class Listening {
 public:
  explicit Listening(Tracer& tracer) { listener = &tracer; }
  ~Listening() { listener = nullptr; }
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;
};

void hear_operator(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (listener != nullptr) {
    listener->hear(handle, keys, stack);
    return;
  }
  const c10::impl::ExcludeDispatchKeyGuard unheard(kTraceKey);
  handle.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kTraceKey), stack);
}

/// Registers hear_operator() at the first trace, because a registration at the start of the process is lost where the
/// linker leaves out a file of a static library.
void register_key() {
  static const torch::Library library = [] {
    torch::Library made(torch::Library::IMPL, "_", kTraceKey, __FILE__, __LINE__);
    made.fallback(torch::CppFunction::makeFromBoxedFunction<&hear_operator>());
    return made;
  }();
}

}  // namespace

TracedModule trace_loss(torch::nn::Module& module, const Loss& loss, const std::vector<at::Tensor>& inputs) {
  require(!inputs.empty(), "trace", "the loss must have an input: got none; pass an example of a micro-batch");
  require(listener == nullptr, "trace", "a loss must not trace another one: got a trace within a trace");
  register_key();
  ModuleOnMeta on_meta(module);
  Tracer tracer(on_meta, inputs);
  const Listening listening(tracer);
  return tracer.run(loss);
}

TracedModule trace_function(const Function& function, const std::vector<at::Tensor>& inputs,
                            const std::vector<Captured>& captured) {
  require(!inputs.empty(), "trace", "the function must have an input: got none; pass an example");
  require(listener == nullptr, "trace", "a function must not trace another one: got a trace within a trace");
  register_key();
  torch::nn::Module none;
  ModuleOnMeta on_meta(none);
  Tracer tracer(on_meta, inputs, captured);
  const Listening listening(tracer);
  return tracer.run(function);
}

std::vector<at::Tensor> run_operator(const TracedOperator& run, const std::vector<at::Tensor>& operands) {
  if (run.whole) {
    std::vector<at::Tensor> all(run.arguments.size());
    for (const TracedOperator::Place& place : run.places) all[place.argument] = operands.at(place.operand);
    return {run.whole(all)};
  }
  std::vector<c10::IValue> arguments = run.arguments;
  for (const TracedOperator::Place& place : run.places)
    put_tensor(arguments, place.argument, place.element, operands.at(place.operand));
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  run.handle->callBoxed(stack);
  return tensors_of(std::vector<c10::IValue>(stack.begin(), stack.end()));
}

namespace {

std::vector<at::Tensor> values_of(const TracedModule& traced, const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> values(traced.operators.size());
  std::map<int, std::vector<at::Tensor>> calls;
  for (size_t i = 0; i < traced.operators.size(); ++i) {
    const TracedOperator& run = traced.operators[i];
    if (run.input >= 0) {
      require(run.input < static_cast<int>(inputs.size()), "trace", "the graph must get the inputs it was ",
              "traced with: got ", inputs.size(), ", it reads input ", run.input);
      values[i] = inputs[run.input];
    } else if (!run.handle && !run.whole) {
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
  return values;
}

}  // namespace

at::Tensor replay(const TracedModule& traced, const std::vector<at::Tensor>& inputs) {
  return values_of(traced, inputs).at(traced.outputs.at(0).index);
}

std::vector<at::Tensor> replay_function(const TracedModule& traced, const std::vector<at::Tensor>& inputs) {
  const c10::AutoGradMode gradients(false);
  const std::vector<at::Tensor> values = values_of(traced, inputs);
  std::vector<at::Tensor> results;
  for (const plan::Source output : traced.outputs) results.push_back(values.at(output.index));
  return results;
}

}  // namespace colossal::trace
