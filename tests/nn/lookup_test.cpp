#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/nn/embedding.h"
#include "ops/compare.h"

namespace colossal::nn::lookup_test {
namespace {

using namespace ops;

// The gradient of a frequent word must not stop growing in a narrow dtype, with or without an earlier gradient.
TEST(Lookup, SumsManyRowsInAllDtypes) {
  constexpr int64_t kTokens = 16384, kRows = 2048, kHidden = 4;
  const auto numbers = at::arange(kTokens, at::kLong);
  const auto ids = numbers.remainder(7).mul(numbers.remainder(3)).view({4, -1});
  for (const auto type : float_types()) {
    const auto rows = (normal({4, kTokens / 4, kHidden}, 1) + 2).to(type).to(at::kDouble);
    const auto want =
        at::zeros({kRows, kHidden}, at::kDouble).index_add_(0, ids.flatten(), rows.reshape({-1, kHidden}));
    const auto table = normal({kRows, kHidden}, 2).to(type).requires_grad_(true);
    for (const int pass : {1, 2}) {
      lookup(table, ids).backward(rows.to(type));
      expect_close(table.grad(), want * pass, type, kTokens, concat(at::toString(type), ", pass ", pass), pass - 1);
    }
  }
}

TEST(Lookup, ChangesOnlyReadRows) {
  for (const auto type : float_types()) {
    const auto table = normal({5, 3}, 1).to(type).requires_grad_(true);
    table.mutable_grad() = at::full({5, 3}, -0.0, type);
    lookup(table, at::tensor({3, 1, 3}, at::kLong)).sum().backward();
    EXPECT_TRUE(at::equal(table.grad().select(1, 0), at::tensor({0.0, 1.0, 0.0, 2.0, 0.0}, at::kDouble).to(type)));
    EXPECT_TRUE(table.grad()[0].signbit().all().item<bool>());
  }
}

TEST(Lookup, AcceptsEmptyIds) {
  const auto table = normal({5, 3}, 1).to(at::kBFloat16).requires_grad_(true);
  lookup(table, at::empty({0, 2}, at::kLong)).sum().backward();
  EXPECT_EQ(table.grad().abs().sum().item<double>(), 0);
}

}  // namespace
}  // namespace colossal::nn::lookup_test
