// Measurements of operators with a clock of the test's own: what is measured is divided by what a recorded step counts.
#include "colossal/run/operator_times.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>

#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::run::operator_times_test {
namespace {

/// A few divisions and subtractions in double.
constexpr double kRounding = 8 * std::numeric_limits<double>::epsilon();

int64_t operators_of(const std::function<void()>& work) {
  const auto count = std::make_shared<std::atomic<int64_t>>(0);
  const tensor::OperationListener listener([count](double, const tensor::Operation&) { ++*count; });
  const tensor::ObservedOperators observed;
  work();
  return *count;
}

TEST(OperatorTimes, DividesAStepByItsRecordedOperators) {
  int64_t operators = 0;
  const double overhead = operator_overhead(at::kFloat, 1e-3, [&](const std::function<void()>& step) {
    operators = operators_of(step);
    return 1.0;
  });
  ASSERT_GT(operators, 0);
  EXPECT_NEAR(overhead, 1.0 / static_cast<double>(operators) - 1e-3, kRounding);
}

TEST(OperatorTimes, NeverGoBelowZero) {
  EXPECT_EQ(operator_overhead(at::kFloat, 1.0, [](const std::function<void()>&) { return 1e-9; }), 0);
}

/// Causal attention of 8 tokens has 36 pairs, each 4 x 64 operations for each of 4 heads, and twice as many backward.
TEST(OperatorTimes, CountsTheOperationsOfAttention) {
  const auto two_seconds = [](const std::function<void()>& step) {
    EXPECT_GT(operators_of(step), 0);
    return 2.0;
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    EXPECT_EQ(attention_rate(at::kFloat, dtype, 8, two_seconds), 3 * 36 * 4 * 64 * 4 / 2.0);
}

}  // namespace
}  // namespace colossal::run::operator_times_test
