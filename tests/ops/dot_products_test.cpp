#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/cpu.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::ops {
namespace {

at::Tensor normal(int64_t rows, int64_t columns, at::ScalarType type, uint64_t seed) {
  at::manual_seed(seed);
  return at::randn({rows, columns}).to(type);
}

/// A dot product of n terms in floating point is off by at most n units of roundoff of the sum of magnitudes
/// (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
at::Tensor bound_of(const at::Tensor& x, const at::Tensor& w) {
  const double unit =
      x.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  const at::Tensor magnitudes = at::matmul(x.to(at::kDouble).abs(), w.to(at::kDouble).abs().t());
  return magnitudes * (static_cast<double>(x.size(1)) * unit);
}

TEST(DotProducts, EqualMatmulForEachDtypeAndInstructionSet) {
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope chosen(set);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
      for (const int64_t depth : {1, 7, 64, 513}) {
        const at::Tensor x = normal(5, depth, type, 1), w = normal(6, depth, type, 2);
        const at::Tensor y = dot_products(x, w);
        ASSERT_EQ(y.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
        const at::Tensor wanted = at::matmul(x.to(at::kDouble), w.to(at::kDouble).t());
        // fp64 compares two results that are both off
        EXPECT_TRUE(((y.to(at::kDouble) - wanted).abs() <= bound_of(x, w) * 2).all().item<bool>())
            << name(set) << " " << type << " " << depth;
      }
  }
}

TEST(DotProducts, GiveRowsTheSameBitsBesideOtherRows) {
  const at::Tensor x = normal(2000, 96, at::kBFloat16, 3), w = normal(8, 96, at::kBFloat16, 4);
  const at::Tensor all = dot_products(x, w);
  for (const int64_t row : {0, 1, 999, 1999})
    EXPECT_TRUE(at::equal(dot_products(x.narrow(0, row, 1), w)[0], all[row])) << row;
}

TEST(DotProducts, RefuseOperandsThatDoNotMatch) {
  EXPECT_THROW(dot_products(at::ones({2, 3}), at::ones({2, 4})), Error);
  EXPECT_THROW(dot_products(at::ones({2, 3}), at::ones({2, 3}, at::kDouble)), Error);
}

}  // namespace
}  // namespace colossal::ops
