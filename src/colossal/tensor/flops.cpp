#include "colossal/tensor/flops.h"

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>

namespace colossal::tensor {
namespace {

// LibTorch hands it on from a thread to those that run backward passes for it. Keys of one's own came after 2.11; this
// one it uses in its own tests alone.
c10::DebugInfoKind key() { return c10::DebugInfoKind::TEST_INFO_2; }

}  // namespace

struct FlopCount::Listener : c10::DebugInfoBase {
  explicit Listener(Listener* outer) : outer(outer) {}
  static Listener* current() { return static_cast<Listener*>(c10::ThreadLocalDebugInfo::get(key())); }
  std::atomic<double> sum = 0;
  Listener* outer;
};

FlopCount::FlopCount()
    : listener_(std::make_shared<Listener>(Listener::current())),
      listening_(std::make_unique<c10::DebugInfoGuard>(key(), listener_)) {}
FlopCount::~FlopCount() = default;

double FlopCount::total() const { return listener_->sum; }

bool are_flops_counted() { return FlopCount::Listener::current() != nullptr; }

void announce_flops(double operations) {
  for (auto* listener = FlopCount::Listener::current(); listener; listener = listener->outer)
    listener->sum += operations;
}

void announce_flops_in_backward(const at::Tensor& result, double operations) {
  if (!result.requires_grad() || !are_flops_counted()) return;
  result.register_hook([operations](const at::Tensor&) { announce_flops(operations); });
}

}  // namespace colossal::tensor
