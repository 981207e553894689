#include "colossal/tensor/host_value.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"

namespace colossal::tensor::host_value_test {
namespace {

TEST(HostValue, ReadsNumbersOfEveryDtype) {
  EXPECT_EQ(host_value(at::full({}, 3, at::kLong)), 3);
  EXPECT_EQ(host_value(at::full({1}, 0.1, at::kDouble).requires_grad_()), 0.1);
  EXPECT_EQ(host_values(at::tensor({1.5f, -2.0f})), (std::vector<double>{1.5, -2}));
}

TEST(HostValue, ReturnsZeroForMetaTensors) {
  EXPECT_EQ(host_value(at::empty({}, at::TensorOptions(at::kFloat).device(at::kMeta))), 0);
  EXPECT_EQ(host_values(at::empty({2}, at::TensorOptions(at::kFloat).device(at::kMeta))), (std::vector<double>{0, 0}));
}

TEST(HostValue, RefusesSeveralElements) { EXPECT_THROW(host_value(at::ones({2})), Error); }

}  // namespace
}  // namespace colossal::tensor::host_value_test
