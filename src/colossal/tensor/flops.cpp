#include "colossal/tensor/flops.h"

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <utility>

namespace colossal::tensor {
namespace {

// LibTorch passes this slot from a thread to the threads that run backward passes for it. Slots for user-defined keys
// exist only after version 2.11; LibTorch uses this one only in its own tests.
c10::DebugInfoKind key() { return c10::DebugInfoKind::TEST_INFO_2; }

/// Returns the dtype of the outermost FactorScope of this thread; Undefined = there is no scope.
at::ScalarType& factor_type() {
  thread_local at::ScalarType type = at::ScalarType::Undefined;
  return type;
}

int& recomputations() {
  thread_local int count = 0;
  return count;
}

}  // namespace

struct OperationListener::Listener : c10::DebugInfoBase {
  Listener(Hear hear, Listener* outer) : hear(std::move(hear)), outer(outer) {}
  static Listener* current() { return static_cast<Listener*>(c10::ThreadLocalDebugInfo::get(key())); }
  const Hear hear;
  Listener* const outer;
};

OperationListener::OperationListener(Hear hear)
    : listening_(std::make_unique<c10::DebugInfoGuard>(
          key(), std::make_shared<Listener>(std::move(hear), Listener::current()))) {}
OperationListener::~OperationListener() = default;

FlopCount::FlopCount()
    : sum_(std::make_shared<std::atomic<double>>(0)),
      listener_([sum = sum_](double operations, const Operation&) { *sum += operations; }) {}

bool are_flops_counted() { return OperationListener::Listener::current() != nullptr; }

void announce_flops(double operations, const Operation& what) {
  for (auto* listener = OperationListener::Listener::current(); listener; listener = listener->outer)
    listener->hear(operations, what);
}

void announce_product(int64_t m, int64_t n, int64_t k, at::ScalarType dtype) {
  announce_flops(
      2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k),
      {Operation::Kind::Product, factor_type() == at::ScalarType::Undefined ? dtype : factor_type(), m, n, k});
}

void announce_flops_in_backward(const at::Tensor& result, double operations, const Operation& what) {
  if (!result.requires_grad() || !are_flops_counted()) return;
  result.register_hook([operations, what](const at::Tensor&) { announce_flops(operations, what); });
}

FactorScope::FactorScope(at::ScalarType dtype) : before_(factor_type()) {
  if (before_ == at::ScalarType::Undefined) factor_type() = dtype;
}
FactorScope::~FactorScope() { factor_type() = before_; }

RecomputationScope::RecomputationScope() { ++recomputations(); }
RecomputationScope::~RecomputationScope() { --recomputations(); }
bool is_recomputing() { return recomputations() > 0; }

}  // namespace colossal::tensor
