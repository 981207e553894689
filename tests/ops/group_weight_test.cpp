// Codes with groups as bytes: parts of a matrix have its values, to the bit.
#include "colossal/ops/products/group_weight.h"

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::group_weight_test {
namespace {

at::Tensor decoded(const GroupWeight& weight, at::ScalarType type) {
  const at::Tensor values = at::empty({weight.form().rows, weight.form().columns}, at::dtype(type));
  decode_groups_(values, weight, 0, 0, type);
  return values;
}

std::vector<RoundingOptions> roundings() {
  return {{.bits = 8, .group = 32}, {.bits = 4, .group = 40}, {.bits = 4, .group = 16, .minima = true}};
}

// Decoded values are those of GroupCodes::values(), rounded once.
TEST(GroupWeight, DecodesAlikeInEveryDtype) {
  for (const RoundingOptions& rounding : roundings()) {
    const GroupCodes codes = round_to_codes(normal({40, 131}, 1).to(at::kFloat), rounding);
    const GroupWeight weight(codes);
    const at::Tensor values = codes.values();
    EXPECT_TRUE(at::equal(decoded(weight, at::kFloat), values));
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      EXPECT_TRUE(at::equal(decoded(weight, type), values.to(type)));
      const at::Tensor wide = at::empty({40, 131});
      decode_groups_(wide, weight, 0, 0, type);
      EXPECT_TRUE(at::equal(wide, values.to(type).to(at::kFloat)));
    }
    // code * scale is rounded once in fp32, and the sum with the minimum once more
    const at::Tensor exact = decoded(weight, at::kDouble);
    EXPECT_LE((exact - values.to(at::kDouble)).abs().max().item<double>(),
              2 * 0x1p-24 * (255 * codes.scales.max().item<double>() + exact.abs().max().item<double>()));
    EXPECT_EQ(weight.form().bytes() % 16, 0);
  }
}

// Parts begin and end inside of groups and of bytes.
TEST(GroupWeight, CopiesParts) {
  for (const RoundingOptions& rounding : roundings()) {
    const GroupCodes codes = round_to_codes(normal({12, 131}, 1).to(at::kFloat), rounding);
    const at::Tensor values = codes.values();
    for (const int64_t column : {0, 1, 16, 39, 40, 127})
      for (const int64_t columns : std::vector<int64_t>{1, 2, 4, 131 - column}) {
        if (column + columns > 131) continue;
        const MatrixPart part{.row = 1, .rows = 4, .column = column, .columns = columns, .row_step = 3};
        const GroupWeight weight(codes, part, rounding.minima);
        const at::Tensor want = values.slice(0, 1, 11, 3).narrow(1, column, columns);
        ASSERT_TRUE(at::equal(decoded(weight, at::kFloat), want)) << column << " " << columns;
        for (const int64_t first : {int64_t{0}, columns / 2, columns - 1}) {
          const at::Tensor own = at::empty({2, columns - first});
          decode_groups_(own, weight, 1, first, at::kFloat);
          EXPECT_TRUE(at::equal(own, want.narrow(0, 1, 2).narrow(1, first, columns - first)));
        }
      }
  }
}

// Code - 8 times the scale is code times the scale plus a minimum, which fp64 computes exactly.
TEST(GroupWeight, AddsMinima) {
  for (const RoundingOptions& rounding :
       {RoundingOptions{.bits = 8, .group = 32}, RoundingOptions{.bits = 4, .group = 40}}) {
    const GroupCodes codes = round_to_codes(normal({12, 80}, 1).to(at::kFloat), rounding);
    const GroupWeight with(codes, {.rows = 12, .columns = 80}, true), without(codes);
    EXPECT_TRUE(at::equal(decoded(with, at::kDouble), decoded(without, at::kDouble)));
    EXPECT_GT(with.form().bytes(), without.form().bytes());
  }
}

TEST(GroupWeight, RefusesOtherBytes) {
  const GroupForm form{.rows = 4, .columns = 16, .bits = 4, .group = 8};
  EXPECT_THROW(GroupWeight(form, at::zeros({form.bytes() + 16}, at::kByte)), Error);
  EXPECT_THROW(GroupWeight(form, at::zeros({form.bytes()}, at::kChar)), Error);
  const GroupWeight weight(form, at::zeros({form.bytes()}, at::kByte));
  EXPECT_THROW(decode_groups_(at::empty({2, 16}), weight, 3, 0, at::kFloat), Error);
  EXPECT_THROW(decode_groups_(at::empty({16, 4}).t(), weight, 0, 0, at::kFloat), Error);
  EXPECT_THROW(decode_groups_(at::empty({4, 16}, at::kInt), weight, 0, 0, at::kInt), Error);
}

}  // namespace
}  // namespace colossal::ops::group_weight_test
