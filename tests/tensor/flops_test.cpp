#include "colossal/tensor/flops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace colossal::tensor::flops_test {
namespace {

TEST(FlopCount, IsOfThisThreadWhileItLives) {
  announce_flops(1);  // nobody listens
  FlopCount outer;
  announce_flops(2);
  {
    FlopCount inner;
    announce_flops(4);
    EXPECT_EQ(inner.total(), 4);
  }
  announce_flops(8);
  std::thread([] { announce_flops(16); }).join();
  EXPECT_EQ(outer.total(), 14);
}

TEST(FlopCount, HearsOfBackwardWhenThatRuns) {
  const at::Tensor x = at::ones({2}).requires_grad_(), y = x * 3;
  FlopCount count;
  announce_flops_in_backward(y, 5);
  EXPECT_EQ(count.total(), 0);
  y.sum().backward();
  EXPECT_EQ(count.total(), 5);
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 3)));
  announce_flops_in_backward(at::ones({2}), 5);  // has no backward pass
}

}  // namespace
}  // namespace colossal::tensor::flops_test
