// Products by AMX tiles. Their bodies run on tiles in plain C++ on every machine; on a machine with tiles, the
// instructions must return the same bits.
#include "colossal/ops/products/tiles.h"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "colossal/ops/products/prepacked_kernels.h"
#include "colossal/ops/products/prepacked_matrix.h"
#include "colossal/ops/tile_permission.h"
#include "ops/compare.h"

namespace colossal::ops {
extern const PrepackedKernels prepacked_portable;
}

namespace colossal::ops::tiles_test {
namespace {

at::Tensor random(at::IntArrayRef shape, uint64_t seed) { return normal(shape, seed).to(at::kFloat); }

/// Returns random int64 values from `low` to `high`, both included.
at::Tensor whole_numbers(at::IntArrayRef shape, int64_t low, int64_t high, uint64_t seed) {
  return (normal(shape, seed) * 1e4).to(at::kLong).remainder(high - low + 1) + low;
}

/// Returns the sums [rows, outputs] after one product of left [rows, pairs * 2] with right [outputs, pairs * 2], both
/// bf16, for at most 16 rows, pairs and outputs.
at::Tensor multiplied(const at::Tensor& left, const at::Tensor& right, const at::Tensor& first_sums) {
  const int64_t rows = left.size(0), outputs = right.size(0), pairs = left.size(1) / 2;
  TileShapes shapes;
  shapes.set(0, rows, outputs * 4), shapes.set(1, rows, pairs * 4), shapes.set(2, pairs, outputs * 4);
  Tiles tiles(shapes);
  const at::Tensor by_pair = right.reshape({outputs, pairs, 2}).transpose(0, 1).contiguous();
  at::Tensor sums = first_sums.clone();
  tiles.load<0>(sums.const_data_ptr(), outputs * 4), tiles.load<1>(left.const_data_ptr(), pairs * 4);
  tiles.load<2>(by_pair.const_data_ptr(), outputs * 4);
  tiles.add_bf16<0, 1, 2>();
  tiles.store<0>(sums.mutable_data_ptr(), outputs * 4);
  return sums;
}

float one_product(const std::vector<float>& left, const std::vector<float>& right, float first_sum = 0) {
  const auto row = [](const std::vector<float>& numbers) { return at::tensor(numbers).unsqueeze(0).to(at::kBFloat16); };
  return multiplied(row(left), row(right), at::full({1, 1}, first_sum)).item<float>();
}

// 2^24 + 1 rounds to 2^24, so each order of sums has a result of its own.
TEST(Tiles, AddsEvenAndOddInputsApart) {
  EXPECT_EQ(one_product({0x1p24f, 1, -0x1p24f, 0}, {1, 1, 1, 1}), 1);
  EXPECT_EQ(one_product({0x1p24f, -0x1p24f, 1, 0}, {1, 1, 1, 1}), 0);
  EXPECT_EQ(one_product({0x1p24f, 0, 0, 1}, {1, 1, 1, 1}, -0x1p24f), 0);  // the old sum is added last
}

TEST(Tiles, RoundsOnceAfterEachProduct) {
  const auto numbers = [](at::IntArrayRef shape, uint64_t seed) {
    return at::ldexp(normal(shape, seed), whole_numbers(shape, -12, 12, seed + 9)).to(at::kBFloat16);
  };
  const int64_t rows = 16, outputs = 13, pairs = 15;
  const at::Tensor left = numbers({rows, 2 * pairs}, 1), right = numbers({outputs, 2 * pairs}, 2);
  const at::Tensor first = random({rows, outputs}, 3), sums = multiplied(left, right, first);
  const at::Tensor a = left.to(at::kFloat), b = right.to(at::kFloat);
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t n = 0; n < outputs; ++n) {
      float of_parity[2] = {};
      for (int64_t k = 0; k < 2 * pairs; ++k)
        of_parity[k % 2] = std::fma(a[m][k].item<float>(), b[n][k].item<float>(), of_parity[k % 2]);
      ASSERT_EQ(sums[m][n].item<float>(), first[m][n].item<float>() + (of_parity[0] + of_parity[1]));
    }
}

TEST(Tiles, TakesDenormalsForZero) {
  EXPECT_EQ(one_product({0x1p-130f, 0}, {0x1p100f, 0}), 0);                // an operand
  EXPECT_EQ(one_product({0, 0}, {0, 0}, 0x1p-130f), 0);                    // the old sum
  EXPECT_EQ(one_product({0x1p-100f, 0}, {0x1p-30f, 0}), 0);                // a result
  EXPECT_EQ(one_product({0x1p-100f, 0}, {0x1p-26f, 0}), 0x1p-126f);        // the smallest normal number
  EXPECT_EQ(one_product({0x1p-100f, 0}, {0x1p-40f, 0}, 1.0f), 1.0f);       // smaller than any bit of the sum
  EXPECT_EQ(one_product({-0x1p-100f, 0}, {0x1p-26f, 0}, 0x1.8p-126f), 0);  // the new sum
  const float sum = one_product({-0x1p-100f, 0}, {0x1p-30f, 0}, 0x1p-126f);
  EXPECT_EQ(sum, 0x1p-126f) << "the flushed product must not take the sum below the normal range";
}

TEST(Tiles, MultipliesSignedCodesByUnsignedOnes) {
  const at::Tensor left = whole_numbers({7, 64}, -128, 127, 1), right = whole_numbers({16, 64}, 0, 255, 2);
  left[0].fill_(-128), right[0].fill_(255), left[1].fill_(127);
  const at::Tensor x = left.to(at::kChar);
  const at::Tensor w = right.to(at::kByte).reshape({16, 16, 4}).transpose(0, 1).contiguous();
  at::Tensor sums = at::full({7, 16}, 5, at::kInt);
  TileShapes shapes;
  shapes.set(0, 7, 64), shapes.set(4, 7, 64), shapes.set(6, 16, 64);
  Tiles tiles(shapes);
  tiles.load<0>(sums.const_data_ptr(), 64), tiles.load<4>(x.const_data_ptr(), 64),
      tiles.load<6>(w.const_data_ptr(), 64);
  tiles.add_codes<0, 4, 6>();
  tiles.store<0>(sums.mutable_data_ptr(), 64);
  EXPECT_TRUE(at::equal(sums.to(at::kLong), at::mm(left, right.t()) + 5));
}

struct Sizes {
  int64_t outputs, inputs;
  std::vector<int64_t> rows;
};

/// Calls body(sizes) for 1 to 40 rows, which make up to two blocks of up to two tiles, with outputs and inputs that are
/// no multiple of a panel, a tile, a pair or a group, and for some numbers of rows with other sizes.
template <class Body>
void for_sizes(const Body& body) {
  std::vector<int64_t> all(40);
  std::iota(all.begin(), all.end(), 1);
  for (const Sizes& sizes : {Sizes{43, 131, all}, Sizes{32, 128, {1, 2, 16, 17, 33}}, Sizes{3, 200, {1, 16, 33}}}) {
    SCOPED_TRACE(::testing::Message() << sizes.outputs << " outputs, " << sizes.inputs << " inputs");
    body(sizes);
  }
}

const std::vector<RoundingOptions> kRoundings{{.bits = 8, .group = 32},
                                              {.bits = 8, .group = 128},
                                              {.bits = 8, .group = 72},
                                              {.bits = 4, .group = 32},
                                              {.bits = 4, .group = 128},
                                              {.bits = 4, .group = 128, .minima = true},
                                              {.bits = 4, .group = 32, .minima = true}};

std::string described(const RoundingOptions& options) {
  return std::to_string(options.bits) + " bits, groups of " + std::to_string(options.group) +
         (options.minima ? " with minima" : "");
}

TEST(TileProducts, MultipliesBf16) {
  for_sizes([](const Sizes& sizes) {
    const at::Tensor w = random({sizes.outputs, sizes.inputs}, 1).to(at::kBFloat16), bias = random({sizes.outputs}, 3);
    const auto matrix = PrepackedMatrix::of(w, PackedType::Bf16);
    for (const int64_t rows : sizes.rows) {
      const at::Tensor x = random({rows, sizes.inputs}, 2), rounded = x.to(at::kBFloat16).to(at::kDouble);
      expect_close(matrix.multiply_by(prepacked_software_tiles, x, bias),
                   at::mm(rounded, w.to(at::kDouble).t()) + bias.to(at::kDouble), at::kFloat, sizes.inputs,
                   std::to_string(rows) + " rows");
    }
  });
}

/// Returns whole numbers whose scale is 1 in each group, because each group contains 127.
at::Tensor rows_of_codes(int64_t rows, int64_t inputs, int64_t group) {
  const at::Tensor x = whole_numbers({rows, inputs}, -127, 127, 4);
  for (int64_t first = 0; first < inputs; first += group) x.select(1, first).fill_(127);
  return x;
}

TEST(TileProducts, MultipliesCodesExactly) {
  for_sizes([](const Sizes& sizes) {
    for (const int64_t bits : {8, 4})
      for (const int64_t group : {8, 32, 128}) {
        const int64_t half = int64_t{1} << (bits - 1);
        GroupCodes codes{.bits = bits, .group = group};
        codes.codes = whole_numbers({sizes.outputs, sizes.inputs}, 1, 2 * half - 1, 5).to(at::kByte);
        codes.scales = at::ones({sizes.outputs, (sizes.inputs + group - 1) / group});
        const PrepackedMatrix matrix(codes);
        for (const int64_t rows : sizes.rows) {
          const at::Tensor x = rows_of_codes(rows, sizes.inputs, group);
          const at::Tensor expected = at::mm(x, (codes.codes.to(at::kLong) - half).t());
          EXPECT_TRUE(
              at::equal(matrix.multiply_by(prepacked_software_tiles, x.to(at::kFloat)), expected.to(at::kFloat)))
              << rows << " rows, " << bits << " bits, groups of " << group;
        }
      }
  });
}

// Sums of codes are exact, and both add groups in the same order.
TEST(TileProducts, EqualsVectorsBitwiseForCodes) {
  for_sizes([](const Sizes& sizes) {
    const at::Tensor w = random({sizes.outputs, sizes.inputs}, 1), bias = random({sizes.outputs}, 3);
    for (const RoundingOptions& options : kRoundings) {
      const PrepackedMatrix matrix(round_to_codes(w, options));
      for (const int64_t rows : sizes.rows) {
        const at::Tensor x = random({rows, sizes.inputs}, 2);
        EXPECT_TRUE(at::equal(matrix.multiply_by(prepacked_software_tiles, x, bias),
                              matrix.multiply_by(prepacked_portable, x, bias)))
            << rows << " rows, " << described(options);
      }
    }
  });
}

std::vector<PrepackedMatrix> matrices(int64_t outputs, int64_t inputs) {
  const at::Tensor w = random({outputs, inputs}, 1);
  std::vector<PrepackedMatrix> packed{PrepackedMatrix::of(w, PackedType::Float),
                                      PrepackedMatrix::of(w, PackedType::Bf16),
                                      PrepackedMatrix::of(w, PackedType::Fp8)};
  for (const RoundingOptions& options : kRoundings) packed.emplace_back(round_to_codes(w, options));
  return packed;
}

// A row is once the only one, once in the first tile, once in the second, and once in another block.
TEST(TileProducts, ComputesRowsIndependently) {
  const at::Tensor x = random({40, 166}, 2);
  for (const PrepackedMatrix& matrix : matrices(70, 166)) {
    const at::Tensor together = matrix.multiply_by(prepacked_software_tiles, x);
    for (int64_t first = 0; first < x.size(0); first += 3)
      for (int64_t count = 1; first + count <= x.size(0); count += 5)
        ASSERT_TRUE(at::equal(matrix.multiply_by(prepacked_software_tiles, x.narrow(0, first, count)),
                              together.narrow(0, first, count)))
            << "rows " << first << " to " << first + count;
  }
}

TEST(TileProducts, EqualsTheStandInBitwise) {
#if defined(__x86_64__)
  const TilePermission& permission = tile_permission();
  if (!permission.has_tiles) GTEST_SKIP() << "this processor has no AMX tiles";
  if (!permission.refusal.empty()) GTEST_SKIP() << "AMX tiles are refused by the system: " << permission.refusal;
  const auto expect_equal = [](const PrepackedMatrix& matrix, const at::Tensor& x, const std::string& what) {
    EXPECT_TRUE(at::equal(matrix.multiply_by(prepacked_amx, x), matrix.multiply_by(prepacked_software_tiles, x)))
        << x.size(0) << " rows, " << what;
  };
  for_sizes([&](const Sizes& sizes) {
    const at::Tensor w = random({sizes.outputs, sizes.inputs}, 1);
    // Output 42 has weights of about 2^-126, so some operands and results are below the normal range.
    const at::Tensor exponents = at::arange(sizes.outputs).unsqueeze(1) * -3 + at::arange(sizes.inputs) % 8;
    const auto bf16 = PrepackedMatrix::of(at::ldexp(w, exponents), PackedType::Bf16);
    for (const int64_t rows : sizes.rows) expect_equal(bf16, random({rows, sizes.inputs}, 2), "bf16");
    for (const RoundingOptions& options : kRoundings) {
      GroupCodes codes = round_to_codes(w, options);
      // With these scales fp32 adds groups exactly, so it makes no difference whether a unit fuses multiply-adds.
      codes.scales.fill_(0.5);
      if (options.minima) codes.minima.fill_(-2);
      const PrepackedMatrix matrix(codes);
      for (const int64_t rows : sizes.rows)
        expect_equal(matrix, rows_of_codes(rows, sizes.inputs, options.group).to(at::kFloat), described(options));
    }
  });
#else
  GTEST_SKIP() << "AMX tiles exist on x86-64 only";
#endif
}

}  // namespace
}  // namespace colossal::ops::tiles_test
