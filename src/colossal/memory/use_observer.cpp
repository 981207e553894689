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

struct Used : at::ObserverContext {
  std::vector<Chunk*> chunks;
};

void collect(const c10::IValue& value, std::vector<Chunk*>& chunks) {
  if (value.isTensor()) {
    Chunk* chunk = Chunk::of(value.toTensor());
    if (chunk && std::find(chunks.begin(), chunks.end(), chunk) == chunks.end()) chunks.push_back(chunk);
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (!element.isTensor()) return;  // a list has elements of one type
      collect(element, chunks);
    }
  }
}

std::unique_ptr<at::ObserverContext> before(const at::RecordFunction& function) {
  std::vector<Chunk*> chunks;
  for (const c10::IValue& input : function.inputs()) collect(input, chunks);
  if (chunks.empty()) return nullptr;
  auto used = std::make_unique<Used>();
  used->chunks = std::move(chunks);
  for (Chunk* chunk : used->chunks) chunk->watcher().before_use(*chunk);
  return used;
}

void after(const at::RecordFunction&, at::ObserverContext* context) {
  if (!context) return;
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
