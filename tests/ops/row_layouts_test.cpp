// Layouts of rows for products with panels, against the same rules applied number by number.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "colossal/ops/products/prepacked_kernels.h"
#include "ops/compare.h"

namespace colossal::ops::row_layouts_test {
namespace {

using Bytes = std::vector<uint8_t>;

/// Rounds to bf16, to nearest even, as fp32 bits; NaN stays NaN.
uint32_t rounded(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return (bits | 0x400000) & 0xFFFF0000;
  return (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
}

/// Rows in fp32 and in the type that the kernels read.
struct Rows {
  Narrow type;
  int64_t rows, inputs;
  std::vector<float> numbers;
  Bytes stored;

  float at(int64_t row, int64_t k) const { return k < inputs ? numbers[row * inputs + k] : 0; }
  int64_t stride() const { return static_cast<int64_t>(stored.size()) / rows; }
};

/// Numbers that round in different ways: ties, both zeros, subnormal, very large and very small.
Rows some_rows(Narrow type, int64_t rows, int64_t inputs) {
  constexpr std::array kSpecial{-0.0f, 0.0f, 1.00390625f, 1.01171875f, -3e38f, 1e-40f, -2.5f, 0.5f, 127.0f};
  const auto random = normal({rows, inputs}, inputs).to(at::kFloat);
  Rows made{type, rows, inputs, {random.const_data_ptr<float>(), random.const_data_ptr<float>() + random.numel()}, {}};
  for (size_t i = 0; i < made.numbers.size(); i += 3) made.numbers[i] = kSpecial[i / 3 % kSpecial.size()];
  const auto dtype = type == Narrow::None ? at::kFloat : type == Narrow::Bf16 ? at::kBFloat16 : at::kHalf;
  const at::Tensor stored = at::tensor(made.numbers).to(dtype), wide = stored.to(at::kFloat);
  made.numbers.assign(wide.const_data_ptr<float>(), wide.const_data_ptr<float>() + wide.numel());
  const auto* bytes = static_cast<const uint8_t*>(stored.const_data_ptr());
  made.stored.assign(bytes, bytes + stored.nbytes());
  return made;
}

/// Lays out rows. The bytes that follow must stay as they are.
Bytes laid_out(PrepackedKernels::LayOut lay_out, RowsToLayOut task, const Rows& rows, int64_t bytes) {
  Bytes out(bytes + 64, 0xA5);
  task.x = rows.stored.data();
  task.type = rows.type;
  task.stride = rows.stride();
  task.rows = rows.rows;
  task.inputs = rows.inputs;
  task.out = out.data();
  lay_out(task);
  for (int64_t i = bytes; i < bytes + 64; ++i) EXPECT_EQ(out[i], 0xA5) << "byte " << i - bytes << " after the block";
  out.resize(bytes);
  return out;
}

/// Index of an element in a block of rows whose lanes have `lane` elements.
int64_t place(int64_t row, int64_t k, int64_t lane, const RowsToLayOut& task) {
  return task.by_row ? row * task.padded + k : (k / lane * task.pitch + row) * lane + k % lane;
}

template <class T>
T element(const Bytes& block, int64_t index) {
  T value;
  std::memcpy(&value, block.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <class Body>
void for_tables(const Body& body) {
  for (const PrepackedKernels* kernels : runnable_prepacked_kernels()) {
    SCOPED_TRACE(kernels->name);
    body(*kernels);
  }
}

TEST(RowLayouts, HoldNumbersOfEveryLength) {
  for_tables([](const PrepackedKernels& kernels) {
    for (const Narrow type : {Narrow::None, Narrow::Bf16, Narrow::Half})
      for (int64_t inputs = 1; inputs <= 200; ++inputs) {
        const Rows rows = some_rows(type, 1 + inputs % 13, inputs);
        for (const bool by_row : {false, true}) {
          SCOPED_TRACE(::testing::Message() << rows.rows << " rows of " << inputs << ", by row: " << by_row);
          const int64_t even = inputs + inputs % 2;
          RowsToLayOut task{.padded = inputs, .pitch = rows.rows, .by_row = by_row};
          const Bytes wide = laid_out(kernels.lay_out_float, task, rows, rows.rows * inputs * 4),
                      widened = laid_out(kernels.lay_out_widened, task, rows, rows.rows * inputs * 4);
          int64_t wrong = 0;
          for (int64_t r = 0; r < rows.rows; ++r)
            for (int64_t k = 0; k < inputs; ++k) {
              const int64_t at = place(r, k, 1, task);
              wrong += element<uint32_t>(wide, at) != std::bit_cast<uint32_t>(rows.at(r, k));
              wrong += element<uint32_t>(widened, at) != rounded(rows.at(r, k));
            }
          task.padded = even;
          const Bytes pairs = laid_out(kernels.lay_out_bf16, task, rows, rows.rows * even * 2);
          for (int64_t r = 0; r < rows.rows; ++r)
            for (int64_t k = 0; k < even; ++k)
              wrong += element<uint16_t>(pairs, place(r, k, 2, task)) != rounded(rows.at(r, k)) >> 16;
          ASSERT_EQ(wrong, 0);
        }
      }
  });
}

/// Returns the code of x: the nearest even integer to x times `inverse`, which may be rounded before.
std::array<int8_t, 2> codes_of(float x, float inverse) {
  constexpr float kMagic = 12582912.0f;
  const volatile float product = x * inverse;
  return {static_cast<int8_t>(std::bit_cast<uint32_t>(product + kMagic) & 0xFF),
          static_cast<int8_t>(std::bit_cast<uint32_t>(std::fma(x, inverse, kMagic)) & 0xFF)};
}

TEST(RowLayouts, HoldCodesOfEveryLength) {
  constexpr float kFactor = 0.25f;
  for_tables([](const PrepackedKernels& kernels) {
    for (const Narrow type : {Narrow::None, Narrow::Bf16})
      for (const int64_t group : {8, 40, 128})
        for (int64_t inputs = 1; inputs <= 200; ++inputs) {
          const Rows rows = some_rows(type, 1 + inputs % 13, inputs);
          const int64_t groups = (inputs + group - 1) / group;
          std::vector<float> scales(groups * rows.rows);
          std::vector<int32_t> sums(groups * rows.rows);
          for (const bool by_row : {false, true}) {
            SCOPED_TRACE(::testing::Message() << rows.rows << " rows of " << inputs << ", groups of " << group);
            const RowsToLayOut task{.padded = groups * group,
                                    .pitch = rows.rows,
                                    .by_row = by_row,
                                    .group = group,
                                    .factor = kFactor,
                                    .scales = scales.data(),
                                    .sums = sums.data()};
            const Bytes block = laid_out(kernels.lay_out_codes, task, rows, rows.rows * task.padded);
            int64_t wrong = 0;
            for (int64_t r = 0; r < rows.rows; ++r)
              for (int64_t g = 0; g < groups; ++g) {
                float largest = 0;
                for (int64_t k = g * group; k < (g + 1) * group; ++k)
                  largest = std::max(largest, std::abs(rows.at(r, k)));
                const float inverse = largest > 0 ? 127.0f / largest : 0;
                int32_t sum = 0;
                for (int64_t k = g * group; k < (g + 1) * group; ++k) {
                  const auto code = element<int8_t>(block, place(r, k, 4, task));
                  const auto wanted = codes_of(rows.at(r, k), inverse);
                  wrong += code != wanted[0] && code != wanted[1];
                  sum += code;
                }
                wrong += scales[g * rows.rows + r] != largest / 127.0f * kFactor;
                wrong += sums[g * rows.rows + r] != sum;
              }
            ASSERT_EQ(wrong, 0);
          }
        }
  });
}

TEST(RowLayouts, RoundTiesToEvenCodes) {
  for_tables([](const PrepackedKernels& kernels) {
    Rows rows{Narrow::None, 1, 8, {127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -0.0}, Bytes(32)};
    std::memcpy(rows.stored.data(), rows.numbers.data(), 32);
    float scale = 0;
    int32_t sum = 0;
    const RowsToLayOut task{.padded = 8, .pitch = 1, .group = 8, .scales = &scale, .sums = &sum};
    EXPECT_EQ(laid_out(kernels.lay_out_codes, task, rows, 8), Bytes({127, 0, 2, 2, 0, 0xFE, 0xFE, 0}));
    EXPECT_EQ(scale, 1);
    EXPECT_EQ(sum, 127);
  });
}

TEST(RowLayouts, KeepNonFiniteNumbersInTheirGroup) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for_tables([](const PrepackedKernels& kernels) {
    for (const float number : {std::nanf(""), -std::nanf(""), kInfinity, -kInfinity})
      for (int64_t k = 0; k < 96; ++k) {
        Rows rows = some_rows(Narrow::None, 3, 96);
        rows.numbers[96 + k] = number;
        std::memcpy(rows.stored.data(), rows.numbers.data(), rows.stored.size());
        std::vector<float> scales(9);
        std::vector<int32_t> sums(9);
        RowsToLayOut task{.padded = 96, .pitch = 3, .group = 32, .scales = scales.data(), .sums = sums.data()};
        laid_out(kernels.lay_out_codes, task, rows, 3 * 96);
        for (int64_t i = 0; i < 9; ++i) EXPECT_EQ(std::isnan(scales[i]), i == k / 32 * 3 + 1) << number << " at " << k;
        const Bytes pairs = laid_out(kernels.lay_out_bf16, task, rows, 3 * 96 * 2),
                    widened = laid_out(kernels.lay_out_widened, task, rows, 3 * 96 * 4);
        const uint32_t bits = static_cast<uint32_t>(element<uint16_t>(pairs, place(1, k, 2, task))) << 16;
        EXPECT_EQ(bits, rounded(number));
        EXPECT_EQ(element<uint32_t>(widened, place(1, k, 1, task)), rounded(number));
      }
  });
}

TEST(RowLayouts, HoldCodesOfWeights) {
  constexpr int64_t kPitch = 32;
  for_tables([](const PrepackedKernels& kernels) {
    for (int64_t inputs = 1; inputs <= 200; ++inputs) {
      Rows rows{Narrow::None, 1 + inputs % kPitch, inputs, {}, {}};
      for (int64_t i = 0; i < rows.rows * inputs; ++i) rows.stored.push_back(static_cast<uint8_t>(i * 7 + i / 11));
      const auto code = [&](int64_t row, int64_t k) { return k < inputs ? rows.stored[row * inputs + k] : 0; };
      const int64_t padded = (inputs + 7) / 8 * 8;
      // Only `rows.rows` of the panel's rows are written, so the last unit of the others must stay.
      const int64_t bytes = (padded / 4 - 1) * kPitch * 4 + rows.rows * 4,
                    half_bytes = (padded / 8 - 1) * kPitch * 4 + rows.rows * 4;
      const RowsToLayOut task{.padded = padded, .pitch = kPitch};
      const Bytes eight = laid_out(kernels.lay_out_bytes, task, rows, bytes),
                  four = laid_out(kernels.lay_out_halves, task, rows, half_bytes);
      int64_t wrong = 0;
      for (int64_t r = 0; r < rows.rows; ++r)
        for (int64_t k = 0; k < padded; ++k) {
          wrong += element<uint8_t>(eight, place(r, k, 4, task)) != code(r, k);
          const uint8_t both = element<uint8_t>(four, (k / 8 * kPitch + r) * 4 + k % 4);
          wrong += (k % 8 < 4 ? both & 15 : both >> 4) != (code(r, k) & 15);
        }
      ASSERT_EQ(wrong, 0) << inputs << " inputs";
    }
  });
}

}  // namespace
}  // namespace colossal::ops::row_layouts_test
