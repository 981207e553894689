// The library's kernels on the trap device. These are the bodies and launches that nvcc compiles for GPUs
// (ops/device/table.h), compiled for the host. Emulated blocks of threads run them on the accessible mapping of the
// device's memory.
//
//   const test::TrapKernels kernels;                  // without, the device runs LibTorch's operators
//   ops::swiglu(gate.to(test::trap_device()), up.to(test::trap_device()));
//   EXPECT_EQ(kernels.launches(), 1);
#pragma once
#include <cstdint>

#include "colossal/ops/device/tables.h"

namespace colossal::test {

/// A scope in which the trap device has the library's kernels. With `run` = false, the tables report that the kernels
/// were compiled for other devices.
class TrapKernels {
 public:
  explicit TrapKernels(bool run = true);
  /// Returns the number of kernels that any thread has launched since the construction.
  int64_t launches() const;

 private:
  ops::DeviceTablesScope tables_;
  int64_t before_;
};

}  // namespace colossal::test
