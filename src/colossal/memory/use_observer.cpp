#include "colossal/memory/use_observer.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "colossal/memory/chunk.h"

namespace colossal::memory {
namespace {

/// An input that shares the memory of a chunk, and its version before the operator.
struct Input {
  at::Tensor tensor;
  Chunk* chunk;
  uint32_t version;
};

struct Used : at::ObserverContext {
  std::vector<Chunk*> chunks;
  std::vector<Input> inputs;
};

/// Returns the number of operators that wrote to the tensor. Tensors of inference mode do not count them.
uint32_t version_of(const at::Tensor& tensor) { return tensor.is_inference() ? 0 : tensor._version(); }

void collect(const c10::IValue& value, std::vector<Input>& inputs) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (Chunk* chunk = Chunk::of(tensor)) inputs.push_back({tensor, chunk, version_of(tensor)});
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (!element.isTensor()) return;  // a list has elements of one type
      collect(element, inputs);
    }
  }
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& function) {
  std::vector<Input> inputs;
  for (const c10::IValue& input : function.inputs()) collect(input, inputs);
  if (inputs.empty()) return nullptr;
  auto used = std::make_unique<Used>();
  for (const Input& input : inputs)
    if (std::find(used->chunks.begin(), used->chunks.end(), input.chunk) == used->chunks.end())
      used->chunks.push_back(input.chunk);
  used->inputs = std::move(inputs);
  for (Chunk* chunk : used->chunks) chunk->watcher().before_use(*chunk);
  return used;
}

void after(const at::RecordFunction&, at::ObserverContext* context) {
  if (!context) return;
  for (const Input& input : static_cast<Used*>(context)->inputs)
    if (input.tensor.is_inference() || version_of(input.tensor) != input.version) input.chunk->set_written(true);
  for (Chunk* chunk : static_cast<Used*>(context)->chunks) chunk->watcher().after_use(*chunk);
}

// The registration with LibTorch is process-wide, because it cannot hold a reference to a store.
std::mutex mutex;
int observers = 0;
at::CallbackHandle registered = at::INVALID_CALLBACK_HANDLE;

}  // namespace

UseObserver::UseObserver() {
  const std::lock_guard lock(mutex);
  if (observers++ == 0)
    registered = at::addGlobalCallback(
        at::RecordFunctionCallback(before, after).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

UseObserver::~UseObserver() {
  const std::lock_guard lock(mutex);
  if (--observers == 0) at::removeCallback(registered);
}

}  // namespace colossal::memory
