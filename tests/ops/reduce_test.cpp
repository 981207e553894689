#include "colossal/ops/reduce.h"

#include "ops/compare.h"

namespace colossal::ops::reduce_test {
namespace {

TEST(SumOfSquares, EqualsItsReferenceForEveryVariant) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const auto type : float_types())
      for (const int64_t n : {0, 1, 31, 1024, 300007}) {
        const auto x = normal({n}, 1, type).to(type);
        // Squares are rounded in the computing type within runs of 1024; the runs are summed in fp64.
        const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
        expect_close(sum_of_squares(x), sum_of_squares_reference(x), wide, 32, at::toString(type));
        EXPECT_EQ(sum_of_squares(x).item<double>(), sum_of_squares(x).item<double>());
      }
  }
}

TEST(SumOfSquares, ReadsFp16) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const int64_t n : {0, 1, 31, 300007}) {
      const auto x = normal({n}, 1).to(at::kHalf);
      expect_close(sum_of_squares(x), sum_of_squares_reference(x), at::kFloat, 32, "fp16");
    }
  }
}

TEST(SumOfSquares, KeepsSmallTermsInLargeSums) {
  auto x = at::full({1 << 22}, 1.0f);
  x[0] = 4000.0f;  // an fp32 sum would lose the ones as soon as it exceeds 2^24
  EXPECT_EQ(sum_of_squares(x).item<double>(), 4000.0 * 4000.0 + (1 << 22) - 1);
}

TEST(Zero, ClearsEverything) {
  for (const auto type : float_types()) {
    auto x = normal({300001}, 1).to(type);
    ops::zero_(x);
    EXPECT_EQ(x.abs().max().item<double>(), 0);
  }
}

}  // namespace
}  // namespace colossal::ops::reduce_test
