// Announces floating-point operations to listeners, as tensor::ReadScope announces reads.
//
//   tensor::FlopCount count;
//   engine.train_step(batch);
//   count.total();  // operations of this rank's matrix products and attention, forward and backward
//
// Layers that compute without ops/matmul and ops/attention announce what they do:
//
//   tensor::announce_product(rows, out, in, x.scalar_type());
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace c10 {
class DebugInfoGuard;
}

namespace colossal::tensor {

/// What is computed, as far as the announcing layer knows it.
struct Operation {
  enum class Kind : uint8_t { Product, Attention };
  Kind kind = Kind::Product;
  at::ScalarType dtype = at::ScalarType::Undefined;  ///< of the factors, before any conversion; Undefined = unknown
  int64_t m = 0, n = 0, k = 0;                       ///< of a product [m, k] [k, n]; 0 = unknown, or attention
};

/// Hears every announcement while it lives: of the thread that made it, and of backward passes that this thread starts,
/// on any thread on which autograd runs them. Nested listeners all hear it. They must be destroyed in reverse order.
class OperationListener {
 public:
  /// Called with the number of operations. It must own what it uses, and allow calls from several threads at once: a
  /// backward pass may end after the listener.
  using Hear = std::function<void(double operations, const Operation& what)>;
  explicit OperationListener(Hear hear);
  ~OperationListener();
  OperationListener(const OperationListener&) = delete;
  OperationListener& operator=(const OperationListener&) = delete;

 private:
  friend bool are_flops_counted();
  friend void announce_flops(double, const Operation&);
  struct Listener;
  std::unique_ptr<c10::DebugInfoGuard> listening_;
};

/// Adds up what an OperationListener hears.
class FlopCount {
 public:
  FlopCount();
  /// A multiplication and an addition are two operations.
  double total() const { return *sum_; }

 private:
  std::shared_ptr<std::atomic<double>> sum_;
  OperationListener listener_;
};

/// Whether a listener hears this thread: for callers to which the number itself costs something.
bool are_flops_counted();
/// Announces that `operations` are about to be made: those that the result needs. Not counted are elementwise work and
/// what a kernel computes twice to save memory. Whole layers that are computed again in backward (nn::recomputed)
/// announce it again. A mask counts by what its rule allows, not by values (documents). Costs almost nothing without a
/// listener.
void announce_flops(double operations, const Operation& what = {});
/// Announces a product [m, k] [k, n] of factors of `dtype`: 2 m n k operations.
void announce_product(int64_t m, int64_t n, int64_t k, at::ScalarType dtype);
/// Announces like announce_flops(), from the backward pass of `result`, if it has one and a listener is there now: for
/// operators whose backward pass is LibTorch's.
void announce_flops_in_backward(const at::Tensor& result, double operations, const Operation& what = {});

/// While it lives, products that this thread announces have this dtype, whatever converted copies are multiplied. Of
/// nested scopes the outermost one counts.
class FactorScope {
 public:
  explicit FactorScope(at::ScalarType dtype);
  ~FactorScope();
  FactorScope(const FactorScope&) = delete;
  FactorScope& operator=(const FactorScope&) = delete;

 private:
  const at::ScalarType before_;
};

}  // namespace colossal::tensor
