// Announces work that takes the time of memory, by the bytes that it reads and writes: kernels of ours announce
// themselves, and operators of LibTorch are observed while somebody records a step.
//
//   const tensor::KernelBytes bytes({x, weight}, {y, mean});      // in an op, for its kernel and for its reference
//   run_kernel(x, weight, y, mean);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "colossal/tensor/flops.h"

namespace colossal::tensor {

/// Returns the bytes of memory behind `x`: of its elements, or of its storage if elements repeat. 0 if undefined.
double moved_bytes(const at::Tensor& x);

/// Announces one kernel that reads and writes these tensors (Operation::Kind::Elementwise), and hides operators of
/// LibTorch from ObservedOperators during its lifetime. So an op has one announcement, whether its kernel or, on
/// shapes alone, its reference runs. Undefined tensors count nothing. Scopes may be nested; the outermost announces.
/// Cost: without a listener a look at one variable of the thread.
class KernelBytes {
 public:
  /// A tensor of the caller, which is not copied.
  struct Named {
    Named(const at::Tensor& x) : tensor(&x) {}  // NOLINT: implicit, so that callers list tensors
    const at::Tensor* tensor;
  };
  KernelBytes(std::initializer_list<Named> read, std::initializer_list<Named> written);
  ~KernelBytes();
  KernelBytes(const KernelBytes&) = delete;
  KernelBytes& operator=(const KernelBytes&) = delete;

 private:
  const bool hides_;
};

/// Hides operators of LibTorch from ObservedOperators during its lifetime, because the code announces itself
/// or is not part of the step.
class HiddenOperators {
 public:
  HiddenOperators();
  ~HiddenOperators();
  HiddenOperators(const HiddenOperators&) = delete;
  HiddenOperators& operator=(const HiddenOperators&) = delete;
};

/// During its lifetime, announces to the listeners of this thread each operator of LibTorch that moves memory, also in
/// backward passes that this thread starts: an operator on its own, of several nested ones the innermost. Operators
/// whose results share the memory of their inputs (views) and allocations move nothing. Matrix products, convolutions
/// and attention of LibTorch are left out: our layers announce their operations.
///
/// Bytes: inputs are read once, results that are new or changed in place are written once. Operators that pick or
///        place rows by an index read and write those rows alone.
/// Cost:  a callback before and after each operator of the thread (at::RecordFunction). Without an object, none.
class ObservedOperators {
 public:
  ObservedOperators();
  ~ObservedOperators();
  ObservedOperators(const ObservedOperators&) = delete;
  ObservedOperators& operator=(const ObservedOperators&) = delete;

 private:
  const uint64_t callback_;
};

}  // namespace colossal::tensor
