// Kernels of the library that a device cannot run, and the error message of a launch.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/updates/block_codes.h"
#include "support/trap_device.h"
#include "support/trap_kernels.h"

namespace colossal::ops::device_kernels_trap_test {
namespace {

TEST(DeviceKernels, FallsBackIfTheDeviceCannotRunThem) {
  const at::Device device = test::trap_device();
  const at::Tensor gate = at::linspace(-2, 2, 12).to(device), up = gate.flip(0);
  const auto ours = [&] {
    const test::TrapKernels kernels;
    EXPECT_TRUE(has_block_codes(device) && has_block_codes(device.type()));
    const at::Tensor y = swiglu(gate, up);
    EXPECT_EQ(kernels.launches(), 1);
    return test::peek(y);
  };
  const at::Tensor first = ours();
  {
    const test::TrapKernels kernels(false);
    EXPECT_FALSE(has_block_codes(device));
    EXPECT_TRUE(at::allclose(test::peek(swiglu(gate, up)), first));
    EXPECT_EQ(kernels.launches(), 0) << "by LibTorch's operators";
  }
  EXPECT_TRUE(at::equal(ours(), first)) << "the answer is that of the table";
}

TEST(DeviceKernels, ReportsTheErrorOfALaunch) {
  EXPECT_THAT([] { refuse_launch("an illegal memory access was encountered"); },
              testing::ThrowsMessage<Error>(testing::AllOf(testing::HasSubstr("an illegal memory access"),
                                                           testing::HasSubstr("CUDA_LAUNCH_BLOCKING=1"),
                                                           testing::Not(testing::HasSubstr("7.5")))));
}

}  // namespace
}  // namespace colossal::ops::device_kernels_trap_test
