#include "colossal/auto_parallel/trace.h"

#include <torch/library.h>

#include "colossal/auto_parallel/module_on_meta.h"
#include "colossal/auto_parallel/trace_key.h"
#include "colossal/auto_parallel/tracer.h"
#include "colossal/base/error.h"

namespace colossal::automatic {
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

TracedModule trace(torch::nn::Module& module, const Loss& loss, const std::vector<at::Tensor>& inputs) {
  require(!inputs.empty(), "auto_parallel", "the loss must have an input: got none; pass an example of a micro-batch");
  require(listener == nullptr, "auto_parallel", "a loss must not trace another one: got a trace within a trace");
  register_key();
  ModuleOnMeta on_meta(module);
  Tracer tracer(on_meta, inputs);
  const Listening listening(tracer);
  return tracer.run(loss);
}

}  // namespace colossal::automatic
