#include "colossal/memory/use_observer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
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

namespace {

/// State of the callback, which is a plain function of LibTorch's and finds it by the thread it runs in.
struct Trace {
  std::map<const c10::StorageImpl*, size_t> first_use;  // rank of each storage in the order of first reads
  std::set<const c10::StorageImpl*> wanted;

  void read(const c10::IValue& value) {
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (!tensor.defined() || !tensor.has_storage()) return;
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      if (wanted.contains(storage)) first_use.emplace(storage, first_use.size());
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) read(element);
    }
  }
};

thread_local Trace* current = nullptr;

std::unique_ptr<at::ObserverContext> note_use(const at::RecordFunction& function) {
  for (const c10::IValue& input : function.inputs()) current->read(input);
  return nullptr;
}

/// Installs callback and trace, and removes both at its end, also if the pass throws.
class Tracing {
 public:
  explicit Tracing(Trace& trace) : before_(current) {
    current = &trace;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(note_use).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~Tracing() {
    at::removeCallback(handle_);
    current = before_;
  }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

 private:
  Trace* before_;
  at::CallbackHandle handle_;
};

}  // namespace

std::vector<size_t> order_of_first_use(const std::vector<at::Tensor>& tensors, const std::function<void()>& pass) {
  Trace trace;
  for (const at::Tensor& tensor : tensors) trace.wanted.insert(tensor.storage().unsafeGetStorageImpl());
  {
    const at::NoGradGuard no_grad;
    const Tracing tracing(trace);
    pass();
  }
  const auto turn = [&](size_t i) {
    const auto found = trace.first_use.find(tensors[i].storage().unsafeGetStorageImpl());
    return found == trace.first_use.end() ? trace.first_use.size() : found->second;
  };
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return turn(a) < turn(b); });
  return order;
}

}  // namespace colossal::memory
