#include "colossal/memory/first_use.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace colossal::memory {
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
