// NF4: golden values of bitsandbytes, kernels and references, and parts of matrices.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/ops/products/nf4_levels.h"
#include "colossal/ops/products/nf4_weight.h"
#include "ops/compare.h"
#include "support/thrown_message.h"

namespace colossal::ops::nf4_test {
namespace {

/// The matrix of the golden values: fp32 of 0.02 sin(1.3 k + 0.4)(1 + k / 256).
at::Tensor golden_matrix() {
  const at::Tensor k = at::arange(512, at::kDouble);
  return (0.02 * (1.3 * k + 0.4).sin() * (1 + k / 256)).to(at::kFloat).view({16, 32});
}

std::string hex_of(const at::Tensor& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  const at::Tensor flat = bytes.flatten().contiguous();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const uint8_t byte = flat.const_data_ptr<uint8_t>()[i];
    hex += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return hex;
}

constexpr char kGoldenCodes[] =
    "be812ce613de405ed307ec219fb11bf912df603ee404ee207fd109fb11cf901de613ee405ed307ec219fb11bf902df603ee4"
    "05ee207fd109fb11cf901df603ef405ed307ec219fb11bf912df603ee405ee207fd109fb11bf901df603ee404fe207ec219f"
    "b11bf912df603ee405ee207fd109fb11bf901df603ee404fe207fd109fb11bf912df603ee405ee207fd109fb11bf902df603"
    "ee405ee207fd109fb11cf912df603ee405ee207fd109fb11bf902df603ee405ee207fd109fb11cf901df603ee405ee207fd1"
    "09fb11bf902df603ee405ee207fd109fb11cf901df603ee405ee207fc119fb11bf902df603ee405ee207fd109fb11cf901df"
    "603ee405fe20";

double sum_of(const at::Tensor& values) { return values.to(at::kDouble).sum().item<double>(); }

TEST(Nf4, EqualsBitsandbytesToTheBit) {
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    const Nf4Weight weight = quantize_nf4(golden_matrix(), {.double_quantized = false});
    EXPECT_EQ(hex_of(weight.codes()), kGoldenCodes) << name(set);
    const std::vector<float> absmax{0.0243985802f, 0.0291418564f, 0.0345971584f, 0.0391249023f,
                                    0.0444742925f, 0.0490414388f, 0.0537049361f, 0.0594919473f};
    EXPECT_TRUE(at::equal(weight.absmax(), at::tensor(absmax)));
    const at::Tensor values = dequantize(weight, at::kFloat);
    EXPECT_NEAR(sum_of(values), -0.00753667892422527, 512 * 0x1p-53 * sum_of(values.abs())) << name(set);
  }
}

TEST(Nf4, EqualsBitsandbytesWithDoubleQuantization) {
  const Nf4Weight weight = quantize_nf4(golden_matrix(), {.double_quantized = true});
  EXPECT_EQ(hex_of(weight.codes()), kGoldenCodes);
  const std::vector<uint8_t> codes{1, 20, 42, 60, 194, 213, 231, 255};
  EXPECT_TRUE(at::equal(weight.stored_absmax(), at::tensor(codes, at::kByte)));
  // The mean is a sum of eight numbers in an order that LibTorch chooses, so its last bits may differ.
  const double mean = weight.nested_mean().item<double>(), last_bits = 8 * 0x1p-24 * 0.0417468;
  EXPECT_NEAR(mean, 0.041746892, last_bits);
  EXPECT_NEAR(weight.nested_absmax().item<double>(), 0.017745055, last_bits);
  const at::Tensor levels = dequantize(weight, at::kDouble).view({8, 64}) / weight.absmax().view({8, 1});
  const double sum = sum_of(dequantize(weight, at::kFloat));
  EXPECT_NEAR(sum, -0.00744069472420961, last_bits * std::abs(sum_of(levels)));
  // With the formula's numbers in place of those of nf4_nested_values(), from which they differ by 6e-8.
  EXPECT_NEAR(sum, -0.0074407286, 6e-8 * 0.0178 * sum_of(levels.abs()));
}

TEST(Nf4, HasTheValuesOfTheDynamicType) {
  const std::vector<float>& values = nf4_nested_values();
  ASSERT_EQ(values.size(), 256u);
  EXPECT_TRUE(std::is_sorted(values.begin(), values.end(), std::less_equal<>()));
  EXPECT_EQ(values.front(), -0.992968738079071f);
  EXPECT_EQ(values[127], 0);
  EXPECT_EQ(values.back(), 1);
  EXPECT_EQ(checksum(values.data(), values.size() * sizeof(float)), "e87f3d8e52e6fc558c54cbcb05904087");
}

TEST(Nf4, TakesTheDocumentedMemory) {
  const int64_t n = int64_t{4096} * 4096;
  EXPECT_EQ(Nf4Form::whole(4096, 4096, false).bytes() * 8, n * 9 / 2);
  const double bits = 8.0 * static_cast<double>(Nf4Form::whole(4096, 4096, true).bytes()) / static_cast<double>(n);
  EXPECT_NEAR(bits, 4.126953125, 8.0 * (1024 + 4 + 16) / static_cast<double>(n));
}

struct Sample {
  int64_t rows, columns;
};
// Rows of whole blocks, of parts of blocks and of odd lengths; more blocks than one maximum covers; one element.
const std::vector<Sample> kSamples{{8, 128}, {3, 172}, {5, 7}, {1, 1}, {64, 1}, {2, 64 * 300}, {7, 320}, {33, 65}};

void expect_same(const Nf4Weight& got, const Nf4Weight& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(got.bytes(), expected.bytes())) << what;
}

TEST(Nf4, QuantizesLikeTheReference) {
  for (const Sample& size : kSamples)
    for (const at::ScalarType type : float_types())
      for (const bool doubled : {false, true}) {
        const at::Tensor matrix = (normal({size.rows, size.columns}, 1) * normal({size.rows, 1}, 2).exp()).to(type);
        const Nf4Weight expected = quantize_nf4_reference(matrix, {.double_quantized = doubled});
        for (const auto set : runnable_instruction_sets()) {
          const InstructionSetScope scope(set);
          expect_same(quantize_nf4(matrix, {.double_quantized = doubled}), expected,
                      std::string(name(set)) + " " + at::toString(type) + " " + std::to_string(size.columns));
        }
      }
}

TEST(Nf4, PicksTheNearestLevel) {
  const at::Tensor matrix = normal({16, 100}, 3).to(at::kFloat),
                   near = dequantize(quantize_nf4(matrix, {false}), at::kFloat);
  const at::Tensor blocks = matrix.view({25, 64}), largest = blocks.abs().amax(1, true);
  const at::Tensor levels = at::tensor(at::ArrayRef<float>(kNf4Levels));
  const at::Tensor best = (blocks.unsqueeze(-1) - largest.unsqueeze(-1) * levels).abs().amin(-1);
  const at::Tensor error = (near.view({25, 64}) - blocks).abs();
  EXPECT_TRUE(error.le(best + largest * 0x1p-23).all().item<bool>());
}

TEST(Nf4, TakesTheLowerOfTwoEquallyNearLevels) {
  std::vector<float> numbers(kNf4Borders.of, kNf4Borders.of + 15);
  numbers.push_back(1);
  for (const auto set : runnable_instruction_sets()) {
    const InstructionSetScope scope(set);
    const Nf4Weight weight = quantize_nf4(at::tensor(numbers).view({2, 8}), {false});
    EXPECT_EQ(hex_of(weight.codes()).substr(0, 16), "0123456789abcdef") << name(set);
  }
}

TEST(Nf4, KeepsBlocksOfZeros) {
  for (const bool doubled : {false, true}) {
    const Nf4Weight weight = quantize_nf4(at::zeros({4, 64}), {.double_quantized = doubled});
    EXPECT_TRUE(dequantize(weight, at::kFloat).eq(0).all().item<bool>()) << doubled;
  }
  at::Tensor mixed = normal({4, 64}, 5).to(at::kFloat);
  mixed[2].zero_();
  EXPECT_TRUE(dequantize(quantize_nf4(mixed, {false}), at::kFloat)[2].eq(0).all().item<bool>());
  // Magnitudes whose inverse is infinite in fp32.
  const at::Tensor tiny = at::full({1, 64}, 0x1p-140f);
  EXPECT_TRUE(dequantize(quantize_nf4(tiny, {false}), at::kFloat).isfinite().all().item<bool>());
}

TEST(Nf4, RefusesWhatItCannotRepresent) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const int64_t place : {0, 70, 127}) {
      at::Tensor matrix = at::ones({2, 64});
      matrix.view({128})[place] = bad;
      for (const auto set : runnable_instruction_sets()) {
        const InstructionSetScope scope(set);
        EXPECT_EQ(test::thrown_message([&] { quantize_nf4(matrix, {}); }),
                  "[quantization] weights must be finite to be quantized to nf4");
      }
    }
  EXPECT_THROW(quantize_nf4(at::ones({4}), {}), Error);
  EXPECT_THROW(quantize_nf4(at::ones({0, 4}), {}), Error);
  EXPECT_THROW(quantize_nf4(at::ones({4, 4}, at::kInt), {}), Error);
}

TEST(Nf4, DecodesLikeTheReference) {
  for (const Sample& size : kSamples)
    for (const bool doubled : {false, true}) {
      const Nf4Weight weight = quantize_nf4(normal({size.rows, size.columns}, 6), {.double_quantized = doubled});
      for (const at::ScalarType type : float_types())
        for (const auto set : runnable_instruction_sets()) {
          const InstructionSetScope scope(set);
          at::Tensor expected = at::empty({size.rows, size.columns}, type);
          decode_nf4_reference_(expected, weight, 0, 0, type);
          EXPECT_TRUE(at::equal(dequantize(weight, type), expected)) << name(set) << " " << type << size.columns;
        }
      // bf16 numbers in fp32
      for (const auto set : runnable_instruction_sets()) {
        const InstructionSetScope scope(set);
        at::Tensor wide = at::empty({size.rows, size.columns});
        decode_nf4_(wide, weight, 0, 0, at::kBFloat16);
        EXPECT_TRUE(at::equal(wide, dequantize(weight, at::kBFloat16).to(at::kFloat))) << name(set);
      }
    }
}

/// Parts of a matrix of these sizes: single rows and columns, whole rows and columns, and others.
std::vector<MatrixPart> parts_of(int64_t rows, int64_t columns) {
  std::vector<MatrixPart> parts{{.rows = rows, .columns = columns}, {.rows = 1, .columns = 1}};
  if (rows > 1) parts.push_back({.row = rows / 2, .rows = rows - rows / 2, .columns = columns});
  if (columns > 1) parts.push_back({.rows = rows, .column = columns / 2, .columns = columns - columns / 2});
  if (columns > 3)
    parts.push_back({.row = rows - 1, .rows = 1, .column = columns / 3, .columns = std::min<int64_t>(columns / 2, 99)});
  if (columns >= 128) parts.push_back({.rows = rows, .column = 64, .columns = 64});
  return parts;
}

at::Tensor at_part(const at::Tensor& whole, const MatrixPart& part) {
  return whole.slice(0, part.row, part.row + (part.rows - 1) * part.row_step + 1, part.row_step)
      .narrow(1, part.column, part.columns);
}

TEST(Nf4, DecodesPartsOfAMatrix) {
  for (const Sample& size : kSamples)
    for (const bool doubled : {false, true})
      for (const bool transposed : {false, true}) {
        const at::Tensor matrix = normal({size.rows, size.columns}, 7);
        const Nf4Weight weight = quantize_nf4(matrix, {.double_quantized = doubled, .transposed = transposed});
        const at::Tensor whole = dequantize(weight, at::kFloat);
        EXPECT_EQ(whole.size(0), transposed ? size.columns : size.rows);
        EXPECT_TRUE(
            at::equal(whole, dequantize(quantize_nf4(transposed ? matrix.t().t() : matrix, {doubled}), at::kFloat)
                                 .permute(transposed ? at::IntArrayRef{1, 0} : at::IntArrayRef{0, 1})));
        for (const MatrixPart& part : parts_of(whole.size(0), whole.size(1)))
          EXPECT_TRUE(at::equal(dequantize(weight, at::kFloat, part), at_part(whole, part)))
              << size.columns << " " << part.row << " " << part.column;
      }
}

TEST(Nf4, ShardsHaveTheValuesOfTheWhole) {
  for (const Sample& size : kSamples)
    for (const bool doubled : {false, true})
      for (const bool transposed : {false, true}) {
        const Nf4Weight weight = quantize_nf4(normal({size.rows, size.columns}, 8) * 3 + 1,
                                              {.double_quantized = doubled, .transposed = transposed});
        const at::Tensor whole = dequantize(weight, at::kFloat);
        for (const MatrixPart& part : parts_of(whole.size(0), whole.size(1))) {
          const Nf4Weight shard = weight.part(part);
          const at::Tensor expected = at_part(whole, part);
          EXPECT_TRUE(at::equal(dequantize(shard, at::kFloat), expected)) << size.columns << " " << part.column;
          at::Tensor by_reference = at::empty({shard.form().rows, shard.form().columns});
          decode_nf4_reference_(by_reference, shard, 0, 0, at::kFloat);
          EXPECT_TRUE(at::equal(transposed ? by_reference.t() : by_reference, expected));
          for (const MatrixPart& inner : parts_of(part.rows, part.columns)) {  // shards of shards
            EXPECT_TRUE(at::equal(dequantize(shard, at::kFloat, inner), at_part(expected, inner)));
            EXPECT_TRUE(at::equal(dequantize(shard.part(inner), at::kFloat), at_part(expected, inner)));
          }
        }
      }
}

TEST(Nf4, ShardsOfRowsInSteps) {
  for (const int64_t columns : {64, 172}) {
    const Nf4Weight weight = quantize_nf4(normal({12, columns}, 9), {});
    const at::Tensor whole = dequantize(weight, at::kFloat);
    const MatrixPart part{.row = 1, .rows = 4, .column = 8, .columns = columns - 8, .row_step = 3};
    EXPECT_TRUE(at::equal(dequantize(weight.part(part), at::kFloat), at_part(whole, part)));
  }
}

TEST(Nf4, ShardsBetweenBlocksTakeNoMoreMemory) {
  const Nf4Weight weight = quantize_nf4(normal({32, 512}, 10), {.double_quantized = false});
  const Nf4Weight columns = weight.part({.rows = 32, .column = 128, .columns = 256}),
                  rows = weight.part({.row = 8, .rows = 16, .columns = 512});
  EXPECT_EQ(columns.bytes().numel(), weight.bytes().numel() / 2);
  EXPECT_EQ(rows.bytes().numel(), weight.bytes().numel() / 2);
}

TEST(Nf4, RefusesPartsOutside) {
  const Nf4Weight weight = quantize_nf4(normal({4, 8}, 11), {});
  for (const MatrixPart& part : std::vector<MatrixPart>{{.row = 1, .rows = 4, .columns = 8},
                                                        {.rows = 4, .column = 1, .columns = 8},
                                                        {.row = -1, .rows = 1, .columns = 8},
                                                        {.rows = 0, .columns = 8},
                                                        {.rows = 3, .columns = 8, .row_step = 2}}) {
    EXPECT_THROW(weight.part(part), Error);
    EXPECT_THROW(dequantize(weight, at::kFloat, part), Error);
  }
  EXPECT_THROW(Nf4Weight(weight.form(), weight.bytes().narrow(0, 0, 16)), Error);
  EXPECT_THROW(Nf4Form::whole(0, 8, true).check(), Error);
  EXPECT_THROW(Nf4Form::whole(int64_t{1} << 40, int64_t{1} << 40, true).check(), Error);
}

TEST(Nf4, TakesNumbersOfFolders) {
  for (const bool doubled : {false, true}) {
    const Nf4Weight weight = quantize_nf4(normal({3, 43}, 12), {.double_quantized = doubled});
    Nf4Codes numbers{.codes = weight.codes().flatten().narrow(0, 0, 65).unsqueeze(1), .absmax = weight.stored_absmax()};
    if (doubled) {
      numbers.nested_absmax = weight.nested_absmax(), numbers.nested_values = weight.nested_values();
      numbers.nested_mean = weight.nested_mean().item<double>();
    }
    const Nf4Weight again = nf4_weight(weight.form(), numbers);
    EXPECT_TRUE(at::equal(dequantize(again, at::kFloat), dequantize(weight, at::kFloat)));
    numbers.codes = numbers.codes.narrow(0, 0, 64);
    EXPECT_THROW(nf4_weight(weight.form(), numbers), Error);
  }
}

}  // namespace
}  // namespace colossal::ops::nf4_test
