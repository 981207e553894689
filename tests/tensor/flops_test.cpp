#include "colossal/tensor/flops.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::tensor::flops_test {
namespace {

TEST(FlopCount, CountsThisThreadDuringItsLifetime) {
  announce_flops(1);  // no listener is active
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

TEST(FlopCount, CountsBackwardWhenItRuns) {
  const at::Tensor x = at::ones({2}).requires_grad_(), y = x * 3;
  FlopCount count;
  announce_flops_in_backward(y, 5);
  EXPECT_EQ(count.total(), 0);
  y.sum().backward();
  EXPECT_EQ(count.total(), 5);
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 3)));
  announce_flops_in_backward(at::ones({2}), 5);  // the result has no backward pass
}

TEST(OperationListener, ReceivesSizesAndDtypeOfEachProduct) {
  std::vector<std::string> heard;
  const OperationListener listener([&](double operations, const Operation& what) {
    const bool is_product = what.kind == Operation::Kind::Product;
    heard.push_back(concat(is_product ? "product" : "attention", " ", what.dtype, " ", what.m, " ", what.n, " ", what.k,
                           ": ", operations));
  });
  announce_product(2, 3, 4, at::kBFloat16);
  announce_flops(5);
  announce_flops(6, {Operation::Kind::Attention, at::kHalf});
  const at::Tensor y = at::ones({2}).requires_grad_() * 3;
  announce_flops_in_backward(y, 7, {Operation::Kind::Attention, at::kFloat});
  y.sum().backward();
  EXPECT_THAT(heard, testing::ElementsAre("product BFloat16 2 3 4: 48", "product UNKNOWN_SCALAR 0 0 0: 5",
                                          "attention Half 0 0 0: 6", "attention Float 0 0 0: 7"));
}

// A backward pass may run after the listener is destroyed, on a thread that still has a reference to it.
TEST(OperationListener, OwnsItsCallback) {
  auto sum = std::make_shared<double>(0);
  {
    const OperationListener listener([sum](double operations, const Operation&) { *sum += operations; });
    EXPECT_GT(sum.use_count(), 1);
    announce_flops(3);
  }
  announce_flops(4);
  EXPECT_EQ(*sum, 3);
  EXPECT_EQ(sum.use_count(), 1);
}

TEST(FactorScope, ReportsTheDtypeBeforeConversion) {
  std::vector<at::ScalarType> heard;
  const OperationListener listener([&](double, const Operation& what) { heard.push_back(what.dtype); });
  {
    const FactorScope outer(at::kBFloat16);
    const FactorScope inner(at::kFloat);
    announce_product(1, 1, 1, at::kDouble);
  }
  announce_product(1, 1, 1, at::kDouble);
  EXPECT_THAT(heard, testing::ElementsAre(at::kBFloat16, at::kDouble));
}

}  // namespace
}  // namespace colossal::tensor::flops_test
