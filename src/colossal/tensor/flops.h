// Announces floating-point operations to listeners, as tensor::ReadScope announces reads.
//
//   tensor::FlopCount count;
//   engine.train_step(batch);
//   count.total();  // operations of this rank's matrix products and attention, forward and backward
//
// Layers that compute without ops/products/matmul and ops/attention/attention announce their own operations:
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

/// One computation, as far as the announcing layer can describe it.
struct Operation {
  enum class Kind : uint8_t {
    Product,
    Attention,
    Elementwise,  ///< work without operations that count; only its bytes are known (tensor/moved_bytes.h)
    HostCopy,     ///< the start of a copy between device and host (tensor/transfers.h)
    Disk,         ///< the start of a read or a write of a disk
    Wait,         ///< the work that follows needs the end of a transfer
  };
  Kind kind = Kind::Product;
  at::ScalarType dtype = at::ScalarType::Undefined;  ///< factors' dtype before any conversion; Undefined = unknown
  int64_t m = 0, n = 0, k = 0;                       ///< sizes of a product [m, k] [k, n]; 0 = unknown, or attention
  /// bytes that Elementwise work reads and writes in memory, HostCopy in the memory of the device, Disk on the disk
  double read = 0, written = 0;
  int64_t transfer = 0;  ///< number of a transfer; 0 = none
};

/// Receives every announcement during its lifetime: from the thread that made it, and from backward passes that this
/// thread starts, on any thread on which autograd runs them. Nested listeners all receive it. They must be destroyed in
/// reverse order of construction.
class OperationListener {
 public:
  /// Callback that receives the number of operations. It must own everything it uses, because a backward pass may end
  /// after the listener is destroyed. It must allow concurrent calls from several threads.
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

/// Sums the operations that are announced during its lifetime, as an OperationListener.
class FlopCount {
 public:
  FlopCount();
  /// Returns the sum so far. A multiplication and an addition are two operations.
  double total() const { return *sum_; }

 private:
  std::shared_ptr<std::atomic<double>> sum_;
  OperationListener listener_;
};

/// Returns true if a listener is active on this thread. Callers check this if counting the operations is costly in
/// itself.
bool are_flops_counted();
/// Announces that `operations` floating-point operations are about to run. Callers count only the operations that the
/// result needs. They leave out elementwise work, and work that a kernel repeats to save memory. Whole layers that
/// backward recomputes (nn::recomputed) announce their operations again. A mask counts by what its rule allows, not by
/// its values (documents). Costs almost nothing without a listener.
void announce_flops(double operations, const Operation& what = {});
/// Announces a product [m, k] [k, n] with factors of `dtype`: 2 m n k operations.
void announce_product(int64_t m, int64_t n, int64_t k, at::ScalarType dtype);
/// Announces `operations` during the backward pass of `result`, as announce_flops() does. Has no effect if `result` has
/// no backward pass or no listener is active at the call. Intended for operators whose backward pass is LibTorch's.
void announce_flops_in_backward(const at::Tensor& result, double operations, const Operation& what = {});

/// Sets the dtype that products announced by this thread report during its lifetime, regardless of converted copies
/// that are multiplied. If scopes are nested, the outermost one applies.
class FactorScope {
 public:
  explicit FactorScope(at::ScalarType dtype);
  ~FactorScope();
  FactorScope(const FactorScope&) = delete;
  FactorScope& operator=(const FactorScope&) = delete;

 private:
  const at::ScalarType before_;
};

/// Marks what this thread does during its lifetime as forward work that a backward pass repeats (nn::recomputed). A
/// backward pass through the repeated work starts after the scope.
class RecomputationScope {
 public:
  RecomputationScope();
  ~RecomputationScope();
  RecomputationScope(const RecomputationScope&) = delete;
  RecomputationScope& operator=(const RecomputationScope&) = delete;
};
/// Returns true if a RecomputationScope exists on this thread.
bool is_recomputing();

}  // namespace colossal::tensor
