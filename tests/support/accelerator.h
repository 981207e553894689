// The accelerator of the tests in tests/accelerator: the trap device in colossal_trap_tests, and the GPUs of the
// machine in colossal_gpu_tests. The tests that run here without a GPU are therefore the same that `ctest -L gpu` runs
// on one.
//
//   const at::Tensor x = at::rand({3}).to(test::accelerator());
//   const test::AcceleratorWaits waits;
//   ops::rms_norm(x, weight, 1e-5);
//   EXPECT_EQ(waits.counts().waits(), 0);
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "support/trap_device.h"

namespace colossal::test {

/// Returns the accelerator of local rank `index`.
at::Device accelerator(int index = 0);
/// Returns the number of accelerators; 0 = the tests are skipped.
int accelerators();

/// Returns true if each of `ranks` thread ranks can have its own accelerator. LibTorch's backward has one thread per
/// device, so ranks that shared one would wait for each other forever.
inline bool has_accelerators_for(int64_t ranks) { return ranks <= accelerators(); }

/// A counter of the waits of the host for accelerator(), until counts() is called. The trap device counts them. On a
/// GPU LibTorch throws at the first wait, and all counts are 0.
class AcceleratorWaits {
 public:
  AcceleratorWaits();
  ~AcceleratorWaits();
  AcceleratorWaits(const AcceleratorWaits&) = delete;
  AcceleratorWaits& operator=(const AcceleratorWaits&) = delete;
  TrapCounts counts();
  /// Returns false on GPUs. A test cannot expect a count other than 0 there.
  static bool are_counted();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A scope in which accelerator() has the library's kernels (ops/device/kernels.h). Without it the trap device runs
/// LibTorch's operators. GPUs always have these kernels if nvcc compiled them.
class AcceleratorKernels {
 public:
  AcceleratorKernels();
  ~AcceleratorKernels();
  AcceleratorKernels(const AcceleratorKernels&) = delete;
  AcceleratorKernels& operator=(const AcceleratorKernels&) = delete;
  /// Returns the number of launches by any thread since the construction or the last call. Returns nothing on GPUs,
  /// which do not count launches.
  std::optional<int64_t> launches();
  /// Returns true if accelerator() can have such kernels.
  static bool are_there();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class AcceleratorTest : public testing::Test {
 protected:
  void SetUp() override {
    if (accelerators() == 0) GTEST_SKIP() << "no CUDA device here";
    accelerator();
  }
};

}  // namespace colossal::test
