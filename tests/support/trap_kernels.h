// Our kernels on the trap device: the bodies and launches that nvcc compiles for GPUs (ops/device_table.h), compiled
// for the host and run by emulated blocks of threads on the accessible mapping of the device's memory.
//
//   const test::TrapKernels kernels;                  // without, the device runs LibTorch's operators
//   ops::swiglu(gate.to(test::trap_device()), up.to(test::trap_device()));
//   EXPECT_EQ(kernels.launches(), 1);
#pragma once
#include <cstdint>

#include "colossal/ops/device_tables.h"

namespace colossal::test {

/// Gives the trap device our kernels while it lives.
class TrapKernels {
 public:
  TrapKernels();
  /// How many kernels were launched since it was made, by any thread.
  int64_t launches() const;

 private:
  ops::DeviceTablesScope tables_;
  int64_t before_;
};

}  // namespace colossal::test
