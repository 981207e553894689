// The device that tensors on meta stand for.
#include "colossal/tensor/device_meant.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/thrown_message.h"

namespace colossal::tensor::device_meant_test {
namespace {

TEST(DeviceMeant, IsThatOfTheInnermostScope) {
  const at::Tensor x = at::empty({2}, at::kMeta), here = at::empty({2});
  EXPECT_TRUE(is_for_cpu(x));
  {
    const MeantDevice outer(at::kCUDA);
    EXPECT_EQ(device_meant(x).type(), at::kCUDA);
    EXPECT_TRUE(is_for_accelerator(x));
    EXPECT_TRUE(is_for_cpu(here)) << "only meta stands for another device";
    const MeantDevice inner(at::kCPU);
    EXPECT_FALSE(is_for_accelerator(x));
    std::thread([&] { EXPECT_TRUE(is_for_cpu(x)) << "scopes of other threads do not apply"; }).join();
  }
  EXPECT_TRUE(is_for_cpu(x));
}

TEST(DeviceMeant, AppliesInBackward) {
  const at::Tensor x = at::empty({2}, at::kMeta).requires_grad_();
  const at::Tensor y = x * 2;
  bool was_for_cuda = false;
  y.register_hook([&](const at::Tensor& gradient) { was_for_cuda = is_for_accelerator(gradient); });
  const MeantDevice device(at::kCUDA);
  y.sum().backward();
  EXPECT_TRUE(was_for_cuda);
}

TEST(DeviceMeant, RefusesMeta) {
  EXPECT_THAT(test::thrown_message([] { const MeantDevice device(at::kMeta); }),
              testing::HasSubstr("[record] meta must stand for a device that has memory: got meta"));
  EXPECT_TRUE(is_for_cpu(at::empty({2}, at::kMeta)));
}

TEST(DeviceMeant, KeepsSizesAndStridesInPlace) {
  const at::Tensor x = at::arange(12).view({3, 4}).narrow(1, 1, 2), shape = shape_in_place(x);
  EXPECT_TRUE(shape.is_meta());
  EXPECT_EQ(shape.sizes(), x.sizes());
  EXPECT_EQ(shape.strides(), x.strides());
  EXPECT_EQ(shape.scalar_type(), x.scalar_type());
  EXPECT_EQ((shape + 1).sizes(), x.sizes());
}

}  // namespace
}  // namespace colossal::tensor::device_meant_test
