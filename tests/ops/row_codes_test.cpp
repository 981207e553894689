#include "colossal/ops/products/row_codes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "colossal/ops/cpu.h"

namespace colossal::ops {
namespace {

/// Codes computed by LibTorch's operators, which encode what is no kernel's type.
RowCodes by_operators(const at::Tensor& x, at::ScalarType codes) { return encode_rows(x.to(at::kDouble), codes); }

at::Tensor bytes(const at::Tensor& codes) { return codes.view(at::kByte); }

void expect_equal(const at::Tensor& x, const std::string& what) {
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const at::ScalarType codes : {at::kChar, at::kFloat8_e4m3fn}) {
      const RowCodes got = encode_rows(x, codes), want = by_operators(x, codes);
      const std::string which = what + " " + toString(codes) + " " + std::string(name(set));
      EXPECT_TRUE(got.scales.equal(want.scales)) << which;
      EXPECT_TRUE(bytes(got.codes).equal(bytes(want.codes))) << which;
    }
  }
}

TEST(RowCodes, EqualThoseOfOperators) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t columns : {1, 3, 31, 32, 64, 80, 129, 1000})
      expect_equal((at::randn({7, 3, columns}) * at::randn({7, 3, 1}).exp()).to(type),
                   std::string(toString(type)) + " of " + std::to_string(columns));
}

// The first element makes the scale 1, so that the others are encoded as they are.
TEST(RowCodes, RoundTiesToEven) {
  const auto row = [](double most, double step) {
    const at::Tensor all = at::arange(-most, most + step, step).to(at::kFloat);
    return at::cat({at::full({1}, most, at::kFloat), all.clamp(-most, most)}).unsqueeze(0);
  };
  expect_equal(row(127, 0.5), "halves");
  for (const double step : {0x1p-11, 0x1p-10, 0x1p-5, 0.5, 8.0})
    expect_equal(at::cat({at::full({1, 1}, 448.0F), row(step * 1024, step).clamp(-448, 448)}, 1),
                 "steps of " + std::to_string(step));
}

TEST(RowCodes, EncodeRowsOfZeros) {
  expect_equal(at::zeros({2, 40}), "zeros");
  expect_equal(at::full({2, 40}, 1e-38F), "smaller than the smallest scale");
}

TEST(RowCodes, MakeRowsThatAreNotFiniteNan) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const at::ScalarType codes : {at::kChar, at::kFloat8_e4m3fn}) {
      at::Tensor x = at::ones({3, 50});
      x[1][37] = bad;
      const RowCodes got = encode_rows(x, codes);
      const at::Tensor numbers = got.codes.to(at::kFloat) * got.scales.unsqueeze(-1);
      EXPECT_TRUE(numbers[1].isnan().all().item<bool>()) << bad << " " << toString(codes);
      EXPECT_TRUE(numbers[0].isfinite().all().item<bool>()) << bad << " " << toString(codes);
      EXPECT_TRUE(numbers[2].eq(numbers[0]).all().item<bool>()) << bad << " " << toString(codes);
    }
}

}  // namespace
}  // namespace colossal::ops
