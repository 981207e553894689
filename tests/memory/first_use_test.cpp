#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "colossal/memory/use_observer.h"

namespace colossal::memory::first_use_test {
namespace {

using Order = std::vector<size_t>;

TEST(FirstUse, FollowsTheOrderOfOperators) {
  const at::Tensor a = at::ones({2, 2}), b = at::ones({2, 2}), c = at::ones({2, 2});
  EXPECT_EQ(order_of_first_use({a, b, c}, [&] { at::mm(at::mm(c, a), b).add_(c); }), (Order{2, 0, 1}));
}

TEST(FirstUse, SeesViewsAndLists) {
  const at::Tensor a = at::ones({4}), b = at::ones({4}), c = at::ones({4});
  EXPECT_EQ(order_of_first_use({a, b, c}, [&] { at::cat({c.view({2, 2}), b.view({2, 2})}).sum().add(a.sum()); }),
            (Order{2, 1, 0}));
}

TEST(FirstUse, GroupsTiedTensorsAndPutsUnreadOnesLast) {
  const at::Tensor a = at::ones({4}), b = at::ones({4}), tied = b.view({2, 2}), never = at::ones({4}),
                   c = at::ones({4});
  EXPECT_EQ(order_of_first_use({never, b, a, tied, c}, [&] { tied.sum().add(c.sum()); }), (Order{1, 3, 4, 0, 2}));
}

TEST(FirstUse, RemovesItsCallbackAfterErrors) {
  const at::Tensor a = at::ones({4}).requires_grad_(), b = at::ones({4});
  EXPECT_THROW(order_of_first_use({a, b}, [] { throw std::runtime_error("no"); }), std::runtime_error);
  at::Tensor sum;
  order_of_first_use({a, b}, [&] { sum = a.sum(); });
  EXPECT_FALSE(sum.requires_grad());
  EXPECT_TRUE(a.sum().requires_grad());
  order_of_first_use({a, b}, [&] { EXPECT_EQ(order_of_first_use({a, b}, [&] { b.sum(); }), (Order{1, 0})); });
}

}  // namespace
}  // namespace colossal::memory::first_use_test
