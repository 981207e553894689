#include "colossal/ops/products/prepacked_matrix.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/products/prepacked_kernels.h"
#include "colossal/ops/products/row_codes.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/flops.h"
#include "ops/compare.h"

namespace colossal::ops::prepacked_matrix_test {
namespace {

at::Tensor random(at::IntArrayRef shape, uint64_t seed) { return normal(shape, seed).to(at::kFloat); }

/// Returns random int64 values from `low` to `high`, both included.
at::Tensor whole_numbers(at::IntArrayRef shape, int64_t low, int64_t high, uint64_t seed) {
  return ((normal(shape, seed) * 1e4).to(at::kLong).remainder(high - low + 1) + low);
}

/// Returns the rows of x after quantization to 8 bits, with one scale per `group` elements, and dequantization. The
/// documentation of PrepackedMatrix describes this quantization.
at::Tensor as_encoded(const at::Tensor& x, int64_t group) {
  const int64_t missing = (group - x.size(1) % group) % group;
  const at::Tensor groups = at::constant_pad_nd(x, {0, missing}).unflatten(1, {-1, group});
  const at::Tensor scale = groups.abs().amax(-1, true) / 127;
  const at::Tensor codes = (groups / scale).nan_to_num(0, 0, 0).round();
  return (codes.to(at::kDouble) * scale.to(at::kDouble)).flatten(1).narrow(1, 0, x.size(1));
}

/// Calls body for each set of kernels that this machine can run. Some numbers of rows are multiples of a block of rows,
/// and some numbers of outputs are multiples of kPanelOutputs; the others are not.
template <class Body>
void for_kernels_and_sizes(const Body& body) {
  for (const PrepackedKernels* kernels : runnable_prepacked_kernels())
    for (const int64_t rows : {1, 2, 3, 7, 12, 25})
      for (const int64_t outputs : {1, 32, 75}) {
        SCOPED_TRACE(::testing::Message() << kernels->name << " " << rows << " x " << outputs);
        body(*kernels, rows, outputs);
      }
}

/// Calls body under each instruction set that this machine can run.
template <class Body>
void for_instruction_sets(const Body& body) {
  for (const InstructionSet set : kInstructionSets) {
    if (!can_run(set)) continue;
    const InstructionSetScope scope(set);
    SCOPED_TRACE(name(set));
    body();
  }
}

TEST(PrepackedMatrix, MultipliesGroupsBitwiseLikeSingleMatrices) {
  const int64_t inputs = 131, outputs = 75;
  const std::vector<int64_t> ends{1, 1, 26, 28};
  std::vector<PrepackedMatrix> matrices;
  for (const int seed : {3, 4, 5})
    matrices.push_back(PrepackedMatrix(round_to_codes(random({outputs, inputs}, seed), {.bits = 8, .group = 32})));
  const std::vector<const PrepackedMatrix*> of_group{&matrices[0], nullptr, &matrices[1], &matrices[2]};
  for_instruction_sets([&] {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = random({ends.back(), inputs}, 2).to(type);
      const at::Tensor y = PrepackedMatrix::multiply_groups(of_group, x, ends);
      EXPECT_EQ(y.scalar_type(), type);
      int64_t first = 0;
      for (size_t e = 0; e < ends.size(); first = ends[e++]) {
        if (!of_group[e]) continue;
        EXPECT_TRUE(at::equal(y.slice(0, first, ends[e]), of_group[e]->multiply(x.slice(0, first, ends[e])))) << e;
      }
    }
  });
}

TEST(PrepackedMatrix, RefusesGroupsThatDoNotFit) {
  const auto one = PrepackedMatrix::of(random({8, 4}, 1), PackedType::Float),
             other = PrepackedMatrix::of(random({6, 4}, 1), PackedType::Float);
  const at::Tensor x = random({3, 4}, 2);
  EXPECT_THROW(PrepackedMatrix::multiply_groups({&one, &other}, x, {1, 3}), Error);
  EXPECT_THROW(PrepackedMatrix::multiply_groups({&one, nullptr}, x, {1, 3}), Error);
  EXPECT_THROW(PrepackedMatrix::multiply_groups({&one}, x, {2}), Error);
}

TEST(PrepackedMatrix, MultipliesFloatingPoint) {
  for_kernels_and_sizes([](const PrepackedKernels& kernels, int64_t rows, int64_t outputs) {
    const int64_t inputs = 131;
    const at::Tensor w = random({outputs, inputs}, 1), x = random({rows, inputs}, 2), bias = random({outputs}, 3);
    const auto expected = [&](at::ScalarType type) {
      const auto through = [&](const at::Tensor& t) { return t.to(type).to(at::kDouble); };
      return at::mm(through(x), through(w).t()) + bias.to(at::kDouble);
    };
    expect_close(PrepackedMatrix::of(w, PackedType::Float).multiply_by(kernels, x, bias), expected(at::kFloat),
                 at::kFloat, inputs, std::string(kernels.name));
    const auto narrow = PrepackedMatrix::of(w.to(at::kBFloat16), PackedType::Bf16);
    expect_close(narrow.multiply_by(kernels, x, bias), expected(at::kBFloat16), at::kFloat, inputs,
                 std::string(kernels.name));
    const at::Tensor y = narrow.multiply_by(kernels, x.to(at::kBFloat16), bias);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    expect_close(y, expected(at::kBFloat16), at::kBFloat16, inputs, std::string(kernels.name));
  });
}

/// Returns x times the transposed weights, both fp32. Each result is one chain of sums in the order of the inputs, with
/// fused or with rounded products.
at::Tensor chains_of(const at::Tensor& x, const at::Tensor& w, bool fused) {
  at::Tensor y = at::empty({x.size(0), w.size(0)});
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < w.size(0); ++j) {
      const float *of_x = x.const_data_ptr<float>() + i * x.size(1), *of_w = w.const_data_ptr<float>() + j * w.size(1);
      float sum = 0;
      for (int64_t k = 0; k < x.size(1); ++k) {
        const float product = of_x[k] * of_w[k];
        sum = fused ? std::fma(of_x[k], of_w[k], sum) : sum + product;
      }
      y[i][j] = sum;
    }
  return y;
}

// Kernels sum over blocks of inputs, so some numbers of inputs are next to a multiple of 64. Tables that multiply pairs
// of bf16 numbers sum in an order of their own.
TEST(PrepackedMatrix, SumsInTheOrderOfInputs) {
  for (const int64_t inputs : {1, 63, 64, 66, 193}) {
    const at::Tensor x = random({12, inputs}, 1), w = random({35, inputs}, 2);
    const auto rounded = [](const at::Tensor& t) { return t.to(at::kBFloat16).to(at::kFloat); };
    for (const bool fused : {false, true}) {
      const at::Tensor wide = chains_of(x, w, fused), narrow = chains_of(rounded(x), rounded(w), fused);
      for (const PrepackedKernels* kernels : runnable_prepacked_kernels()) {
        if ((kernels->name != "portable") != fused) continue;
        for (int64_t rows = 1; rows <= x.size(0); ++rows) {
          SCOPED_TRACE(::testing::Message() << kernels->name << " " << rows << " rows, " << inputs << " inputs");
          const auto product = [&](PackedType type) {
            return PrepackedMatrix::of(w, type).multiply_by(*kernels, x.narrow(0, 0, rows));
          };
          EXPECT_TRUE(at::equal(product(PackedType::Float), wide.narrow(0, 0, rows)));
          EXPECT_TRUE(!kernels->bf16_rows.widened || at::equal(product(PackedType::Bf16), narrow.narrow(0, 0, rows)));
        }
      }
    }
  }
}

// First every output has all e4m3 codes as weights, also subnormal ones, with 0 for NaN. Their largest value is 448, so
// scales are 1 and products are exact. Then random weights.
TEST(PrepackedMatrix, PacksRowsOfSeveralTensors) {
  const at::Tensor w = random({75, 41}, 1), x = random({3, 41}, 2);
  const at::Tensor wide = at::cat({w.narrow(0, 0, 40), w.narrow(0, 40, 7).to(at::kHalf).to(at::kFloat),
                                   w.narrow(0, 47, 28).to(at::kBFloat16).to(at::kFloat)});
  const std::vector<at::Tensor> parts{at::constant_pad_nd(w.narrow(0, 0, 40), {2, 3}).narrow(1, 2, 41),
                                      w.narrow(0, 40, 7).to(at::kHalf),
                                      w.narrow(0, 47, 28).to(at::kBFloat16).t().contiguous().t()};
  for (const PackedType type : {PackedType::Float, PackedType::Bf16, PackedType::Fp8})
    EXPECT_TRUE(at::equal(PrepackedMatrix::of(parts, type).multiply(x), PrepackedMatrix::of(wide, type).multiply(x)));
  EXPECT_TRUE(at::equal(PrepackedMatrix::of(wide, PackedType::Bf16).multiply(x),
                        PrepackedMatrix::of(wide.to(at::kBFloat16), PackedType::Bf16).multiply(x)));
  EXPECT_THROW(PrepackedMatrix::of({w, w.narrow(1, 0, 40)}, PackedType::Float), Error);
}

TEST(PrepackedMatrix, MultipliesFp8) {
  const at::Tensor codes =
      at::arange(256, at::kInt).to(at::kByte).view(at::kFloat8_e4m3fn).to(at::kFloat).nan_to_num(0);
  for (const PrepackedKernels* kernels : runnable_prepacked_kernels()) {
    const auto all = PrepackedMatrix::of(codes.expand({40, 256}), PackedType::Fp8);
    const at::Tensor x = at::eye(256), expected = codes.unsqueeze(1).expand({256, 40});
    for (const int64_t rows : {1, 2, 3, 8, 256})  // so that every split into parts reads all codes
      for (int64_t first = 0; first + rows <= 256; first += rows)
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
          ASSERT_TRUE(at::equal(all.multiply_by(*kernels, x.narrow(0, first, rows).to(type)),
                                expected.narrow(0, first, rows).to(type)))
              << kernels->name << " " << rows << " rows of " << type << " from " << first;
  }
  for_kernels_and_sizes([](const PrepackedKernels& kernels, int64_t rows, int64_t outputs) {
    const int64_t inputs = 131;
    const at::Tensor w = random({outputs, inputs}, 1) * random({outputs, 1}, 9).exp(), x = random({rows, inputs}, 2);
    const at::Tensor bias = random({outputs}, 3);
    const auto matrix = PrepackedMatrix::of(w, PackedType::Fp8);
    EXPECT_EQ(matrix.bytes(), (outputs + 31) / 32 * 32 * (inputs + 1 + 4)) << "inputs are padded to pairs";
    const RowCodes rounded = encode_rows(w, at::kFloat8_e4m3fn);
    const at::Tensor near = rounded.codes.to(at::kDouble) * rounded.scales.unsqueeze(-1);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor rows_of_type = x.to(type);
      expect_close(matrix.multiply_by(kernels, rows_of_type, bias),
                   at::mm(rows_of_type.to(at::kDouble), near.t()) + bias.to(at::kDouble), type, inputs,
                   std::string(kernels.name));
    }
  });
}

// Integers with scales of 1 make every product and sum exact. A scale of x is 1 because each of its groups contains 127
// or -127.
TEST(PrepackedMatrix, AddsProductsOfCodesExactly) {
  for_kernels_and_sizes([](const PrepackedKernels& kernels, int64_t rows, int64_t outputs) {
    const int64_t inputs = 200;
    for (const int64_t group : {64, 40, 16}) {
      at::Tensor x = whole_numbers({rows, inputs}, -127, 127, 4);
      for (int64_t g = 0; g < inputs; g += group) x.select(1, g).fill_(g / group % 2 == 0 ? 127 : -127);
      for (const int64_t bits : {8, 4}) {
        const int64_t half = int64_t{1} << (bits - 1);
        GroupCodes codes{.bits = bits, .group = group};
        codes.codes = whole_numbers({outputs, inputs}, 1, 2 * half - 1, 5).to(at::kByte);
        codes.scales = at::ones({outputs, (inputs + group - 1) / group});
        const at::Tensor expected = at::mm(x, (codes.codes.to(at::kLong) - half).t());
        const at::Tensor y = PrepackedMatrix(codes).multiply_by(kernels, x.to(at::kFloat));
        EXPECT_TRUE(at::equal(y, expected.to(at::kFloat))) << bits << " bits, groups of " << group;
      }
    }
  });
}

TEST(PrepackedMatrix, MultipliesExtremeCodes) {
  for (const PrepackedKernels* kernels : runnable_prepacked_kernels())
    for (const int64_t bits : {8, 4})
      for (const int64_t sign : {1, -1}) {
        const int64_t inputs = 128, half = int64_t{1} << (bits - 1);
        GroupCodes codes{.bits = bits, .group = inputs};
        codes.codes = at::full({32, inputs}, sign > 0 ? 1 : 2 * half - 1, at::kByte);
        codes.scales = at::ones({32, 1});
        for (const int64_t of_x : {-127, 127}) {
          const at::Tensor x = at::full({7, inputs}, static_cast<float>(of_x));
          const auto expected = static_cast<float>(-of_x * sign * (half - 1) * inputs);
          EXPECT_TRUE(PrepackedMatrix(codes).multiply_by(*kernels, x).eq(expected).all().item<bool>()) << kernels->name;
        }
      }
}

TEST(PrepackedMatrix, MultipliesRoundedWeights) {
  for_kernels_and_sizes([](const PrepackedKernels& kernels, int64_t rows, int64_t outputs) {
    const int64_t inputs = 300;
    const at::Tensor w = random({outputs, inputs}, 1) * 1e-4, x = random({rows, inputs}, 2),
                     bias = random({outputs}, 3);
    for (const RoundingOptions& options : {RoundingOptions{.bits = 8}, RoundingOptions{.bits = 4, .group = 32},
                                           RoundingOptions{.bits = 4, .group = 128, .minima = true}}) {
      const GroupCodes codes = round_to_codes(w, options);
      const at::Tensor expected =
          at::mm(as_encoded(x, options.group), codes.values().to(at::kDouble).t()) + bias.to(at::kDouble);
      expect_close(PrepackedMatrix(codes).multiply_by(kernels, x, bias), expected, at::kFloat, inputs,
                   std::string(kernels.name));
    }
  });
}

TEST(PrepackedMatrix, ComputesRowsIndependently) {
  const int64_t inputs = 264;
  const at::Tensor w = random({70, inputs}, 1), x = random({30, inputs}, 2);
  std::vector<PrepackedMatrix> packed{PrepackedMatrix::of(w, PackedType::Float),
                                      PrepackedMatrix::of(w, PackedType::Bf16), PrepackedMatrix::of(w, PackedType::Fp8),
                                      PrepackedMatrix(round_to_codes(w, {.bits = 8})),
                                      PrepackedMatrix(round_to_codes(w, {.bits = 4, .minima = true}))};
  for (const PrepackedKernels* kernels : runnable_prepacked_kernels())
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (const PrepackedMatrix& matrix : packed) {
        const at::Tensor rows = x.to(type), together = matrix.multiply_by(*kernels, rows);
        for (int64_t i = 0; i < x.size(0); ++i)
          for (int64_t count = 1 + i % 4; i + count <= x.size(0); count += 4)
            ASSERT_TRUE(at::equal(matrix.multiply_by(*kernels, rows.narrow(0, i, count)), together.narrow(0, i, count)))
                << kernels->name << " rows " << i << " to " << i + count << " in " << type << " of type "
                << static_cast<int>(matrix.type());
      }
}

TEST(PrepackedMatrix, PropagatesNonFiniteValues) {
  const at::Tensor w = at::ones({32, 64}), x = at::ones({3, 64});
  x[1][5] = std::numeric_limits<float>::quiet_NaN(), x[2][60] = std::numeric_limits<float>::infinity();
  for (const PrepackedKernels* kernels : runnable_prepacked_kernels())
    for (const PrepackedMatrix& matrix :
         {PrepackedMatrix::of(w, PackedType::Float), PrepackedMatrix(round_to_codes(w, {.bits = 8, .group = 32}))}) {
      const at::Tensor finite = at::isfinite(matrix.multiply_by(*kernels, x)).select(1, 0);
      EXPECT_TRUE(finite[0].item<bool>());
      EXPECT_FALSE(finite[1].item<bool>() || finite[2].item<bool>()) << kernels->name;
    }
}

TEST(PrepackedMatrix, KeepsShapes) {
  const auto matrix = PrepackedMatrix::of(random({5, 16}, 1), PackedType::Float);
  EXPECT_EQ(matrix.multiply(random({2, 3, 16}, 2)).sizes(), at::IntArrayRef({2, 3, 5}));
  EXPECT_EQ(matrix.multiply(random({16}, 2)).sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(matrix.multiply(at::empty({0, 16})).sizes(), at::IntArrayRef({0, 5}));
  EXPECT_EQ(matrix.bytes(), 32 * 16 * 4);
  EXPECT_EQ(PrepackedMatrix(round_to_codes(random({33, 256}, 1), {.bits = 4})).bytes(), 64 * (256 / 2 + 2 * 2));
}

/// Returns the operations of the products that `work` announces.
template <class Work>
double operations_of(const Work& work) {
  const tensor::FlopCount count;
  work();
  return count.total();
}

TEST(PrepackedMatrix, StandsForItselfInRecordedSteps) {
  const at::Tensor w = random({75, 131}, 1), x = random({26, 131}, 2), bias = random({75}, 3);
  const at::Tensor shape = w.to(at::kMeta), rows = x.to(at::kMeta);
  for (const PackedType type : {PackedType::Float, PackedType::Bf16, PackedType::Fp8}) {
    const auto real = PrepackedMatrix::of(w, type);
    auto recorded = PrepackedMatrix::of(shape, type);
    EXPECT_EQ(recorded.bytes(), real.bytes());
    EXPECT_EQ(recorded.multiply(rows, bias.to(at::kMeta)).sizes(), at::IntArrayRef({26, 75}));
    const std::vector<int64_t> ends{1, 1, 26};
    EXPECT_EQ(PrepackedMatrix::multiply_groups({&recorded, nullptr, &recorded}, rows, ends).sizes(),
              at::IntArrayRef({26, 75}));
    EXPECT_EQ(operations_of([&] { recorded.multiply(rows); }), 2.0 * 26 * 75 * 131);
    EXPECT_EQ(operations_of([&] { PrepackedMatrix::multiply_groups({&recorded, nullptr, &recorded}, rows, ends); }),
              operations_of([&] { PrepackedMatrix::multiply_groups({&real, nullptr, &real}, x, ends); }));
    EXPECT_THROW(recorded.multiply(x), Error) << "values for shapes";
    EXPECT_THROW(real.multiply(rows), Error);
    if (type == PackedType::Fp8) continue;
    recorded.put({shape});
    EXPECT_THROW(recorded.put({w}), Error);
  }
  const tensor::MeantDevice meant(at::kCUDA);
  EXPECT_THROW(PrepackedMatrix::of(shape, PackedType::Float), Error) << "accelerators have no packed weights";
}

TEST(PrepackedMatrix, RefusesMismatchedInputs) {
  const auto matrix = PrepackedMatrix::of(random({5, 16}, 1), PackedType::Float);
  EXPECT_THROW(matrix.multiply(random({2, 15}, 2)), Error);
  EXPECT_THROW(matrix.multiply(random({2, 16}, 2).to(at::kDouble)), Error);
  EXPECT_THROW(matrix.multiply(random({2, 16}, 2), random({4}, 3)), Error);
  EXPECT_THROW(PrepackedMatrix::of(random({5}, 1), PackedType::Float), Error);
  EXPECT_THROW(PrepackedMatrix::of(random({5, 16}, 1), PackedType::Int8), Error);
  EXPECT_THROW(PrepackedMatrix::of(at::full({5, 16}, std::numeric_limits<float>::infinity()), PackedType::Fp8), Error);
}

TEST(GroupCodes, RoundsToTheNearestValue) {
  const at::Tensor w = random({9, 100}, 1);
  for (const RoundingOptions& options :
       {RoundingOptions{.bits = 8, .group = 32}, RoundingOptions{.bits = 4, .group = 32},
        RoundingOptions{.bits = 4, .group = 32, .minima = true}}) {
    const GroupCodes codes = round_to_codes(w, options);
    const at::Tensor scale = codes.scales.repeat_interleave(32, 1).narrow(1, 0, 100);
    // Half a step, plus the rounding of scale and minimum to the 11 bits of binary16. The error of the scale is largest
    // for the largest code.
    const double max_code = options.bits == 8 ? 127 : 15;
    EXPECT_TRUE(((codes.values() - w).abs() <= scale * (0.5 + max_code * 0x1p-10)).all().item<bool>());
    EXPECT_TRUE(at::equal(through_binary16(codes.scales), codes.scales));
  }
}

TEST(GroupCodes, EncodesZeros) {
  for (const bool minima : {false, true}) {
    const GroupCodes codes = round_to_codes(at::zeros({2, 16}), {.bits = 4, .group = 16, .minima = minima});
    EXPECT_TRUE(at::equal(codes.values(), at::zeros({2, 16})));
  }
}

TEST(GroupCodes, RefusesInvalidCodes) {
  const at::Tensor w = random({4, 32}, 1);
  EXPECT_THROW(round_to_codes(w, {.bits = 5}), Error);
  EXPECT_THROW(round_to_codes(w, {.bits = 4, .group = 12}), Error);
  EXPECT_THROW(round_to_codes(w, {.bits = 8, .minima = true}), Error);
  EXPECT_THROW(round_to_codes(w / 0, {}), Error);
  GroupCodes codes = round_to_codes(w, {.bits = 8, .group = 16});
  codes.group = 32;
  EXPECT_THROW(codes.check(), Error);
}

}  // namespace
}  // namespace colossal::ops::prepacked_matrix_test
