// The accelerator that tests/accelerator runs on: the trap device in colossal_trap_tests, the GPUs of the machine in
// colossal_gpu_tests. So what passes here without a GPU is what `ctest -L gpu` asks of one.
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

/// That of local rank `index`.
at::Device accelerator(int index = 0);
/// How many there are; 0: the tests are skipped.
int accelerators();

/// Whether each of `ranks`, which are threads of this process, has one of its own. LibTorch's backward has one thread a
/// device: ranks that shared one would wait for one another for ever.
inline bool has_accelerators_for(int64_t ranks) { return ranks <= accelerators(); }

/// How often the host waits for accelerator() until counts() is asked for: on the trap device that is counted. On a GPU
/// LibTorch throws at the place of the first wait, and all counts are 0.
class AcceleratorWaits {
 public:
  AcceleratorWaits();
  ~AcceleratorWaits();
  AcceleratorWaits(const AcceleratorWaits&) = delete;
  AcceleratorWaits& operator=(const AcceleratorWaits&) = delete;
  TrapCounts counts();
  /// False on GPUs: then a number that is not 0 cannot be expected.
  static bool are_counted();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Gives accelerator() our kernels (ops/device_kernels.h) while it lives: the trap device has LibTorch's operators
/// otherwise. GPUs have ours anyway, where nvcc compiled them.
class AcceleratorKernels {
 public:
  AcceleratorKernels();
  ~AcceleratorKernels();
  AcceleratorKernels(const AcceleratorKernels&) = delete;
  AcceleratorKernels& operator=(const AcceleratorKernels&) = delete;
  /// Since this was made or asked last, by any thread; none on GPUs, where nobody counts.
  std::optional<int64_t> launches();
  /// Whether there are any.
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
