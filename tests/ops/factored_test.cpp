#include "colossal/ops/updates/factored.h"

#include <utility>

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::factored_test {
namespace {

const std::pair<int64_t, int64_t> kShapes[] = {{1, 1}, {3, 70001}, {70001, 3}, {257, 1029}, {0, 5}};

/// Returns a matrix [n, m] with gaps between its rows.
at::Tensor matrix(int64_t n, int64_t m, uint64_t seed, at::ScalarType type) {
  return normal({n + 1, m + 2}, seed).to(type).slice(0, 1).slice(1, 1, m + 1);
}

TEST(SquareSums, EqualsItsReference) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
      for (const auto& [n, m] : kShapes) {
        const auto x = matrix(n, m, 1, type);
        const auto rows = normal({n}, 2), columns = normal({m}, 3), want_rows = rows.clone(),
                   want_columns = columns.clone();
        add_square_sums(x, rows, columns);
        add_square_sums_reference(x, want_rows, want_columns);
        expect_close(rows, want_rows, at::kDouble, 1 << 17, concat(name(set), " ", at::toString(type), " rows"));
        expect_close(columns, want_columns, at::kDouble, 1 << 17,
                     concat(name(set), " ", at::toString(type), " columns"));
      }
  }
  EXPECT_THROW(add_square_sums(at::zeros({2, 3}), at::zeros({3}, at::kDouble), at::zeros({3}, at::kDouble)), Error);
  EXPECT_THROW(add_square_sums(at::zeros({2, 3}), at::zeros({2}), at::zeros({3}, at::kDouble)), Error);
}

TEST(ScaleRowsColumns, EqualsItsReference) {
  struct Types {
    at::ScalarType from, to;
  };
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    for (const Types& types :
         {Types{at::kDouble, at::kDouble}, Types{at::kFloat, at::kFloat}, Types{at::kBFloat16, at::kFloat},
          Types{at::kHalf, at::kFloat}, Types{at::kBFloat16, at::kBFloat16}, Types{at::kFloat, at::kBFloat16}})
      for (const auto& [n, m] : kShapes) {
        const auto wide = types.to == at::kDouble ? at::kDouble : at::kFloat;
        const auto from = matrix(n, m, 1, types.from), rows = normal({n}, 2).to(wide),
                   columns = normal({m}, 3).to(wide);
        const auto got = matrix(n, m, 4, types.to), want = got.clone();
        const double sum = scale_rows_columns(from, rows, columns, got).item<double>(),
                     want_sum = scale_rows_columns_reference(from, rows, columns, want).item<double>();
        const std::string what = concat(name(set), " ", at::toString(types.from), " to ", at::toString(types.to));
        expect_close(got, want, types.to, 1, what, 1);  // the reference is rounded too
        // Length of a run; all runs are added up in fp64
        const int64_t longest_sum = wide == at::kDouble ? n * m + 1 : 1024;
        expect_close(at::scalar_tensor(sum, at::kDouble), at::scalar_tensor(want_sum, at::kDouble), wide, longest_sum,
                     what);
      }
  }
}

TEST(ScaleRowsColumns, ScalesOnlyTheGivenPartInPlace) {
  const at::Tensor whole = at::ones({4, 40}), part = whole.narrow(0, 1, 2).narrow(1, 3, 33);
  EXPECT_EQ(scale_rows_columns(part, at::tensor({2.0f, 3.0f}), at::full({33}, 0.5f), part).item<double>(),
            33 * (1 + 2.25));
  EXPECT_EQ(whole.sum().item<double>(), 160 - 66 + 33 * (1 + 1.5));
  EXPECT_EQ(part[1][32].item<double>(), 1.5);
}

TEST(ScaleRowsColumns, RefusesMismatchedFactors) {
  const at::Tensor x = at::zeros({2, 3}), two = at::zeros({2}), three = at::zeros({3});
  EXPECT_THROW(scale_rows_columns(x, three, three, x), Error);
  EXPECT_THROW(scale_rows_columns(x, two, three.to(at::kDouble), x), Error);
  EXPECT_THROW(scale_rows_columns(x, two, three, at::zeros({3, 2})), Error);
}

}  // namespace
}  // namespace colossal::ops::factored_test
