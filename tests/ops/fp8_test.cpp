#include "colossal/ops/products/fp8.h"

#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "ops/compare.h"

namespace colossal::ops::fp8_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A format as its paper defines it, independent of ATen.
struct Format {
  Fp8 format;
  int mantissa_bits, bias;
  bool has_infinity;

  /// Returns the value of a code: (-1)^sign 2^(exponent - bias) 1.mantissa, without the leading 1 if the exponent is 0.
  double value(int code) const {
    const int mantissa = code & ((1 << mantissa_bits) - 1), exponent = (code & 0x7f) >> mantissa_bits,
              highest = 0x7f >> mantissa_bits;
    const double sign = code & 0x80 ? -1 : 1;
    if (exponent == highest && has_infinity) return mantissa == 0 ? sign * kInfinity : std::nan("");
    if ((code & 0x7f) == 0x7f) return std::nan("");
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias));
  }
  int largest_code() const {
    int code = 0x7f;
    while (!std::isfinite(value(code))) --code;
    return code;
  }
};

const std::vector<at::ScalarType> kTypes{at::kDouble, at::kFloat, at::kBFloat16};  // fp16 is refused
const Format kFormats[] = {{Fp8::E4m3, 3, 7, false}, {Fp8::E5m2, 2, 15, true}};

at::Tensor one() { return at::ones({}, at::kFloat); }

/// Returns the codes of values that `type` represents exactly. They are converted all at once and one by one, because
/// ATen has separate code for few elements; both must agree.
std::vector<int> codes_of(const std::vector<double>& numbers, Fp8 format, at::ScalarType type = at::kFloat) {
  const at::Tensor x = at::tensor(numbers, at::kDouble).to(type);
  EXPECT_TRUE(x.to(at::kDouble).equal(at::tensor(numbers, at::kDouble)) || at::isnan(x).any().item<bool>());
  const at::Tensor bytes = quantize(x, format, one()).view(at::kByte);
  std::vector<int> codes;
  for (int64_t i = 0; i < x.numel(); ++i) {
    codes.push_back(bytes[i].item<uint8_t>());
    EXPECT_EQ(quantize(x[i], format, one()).view(at::kByte).item<uint8_t>(), codes.back()) << numbers[i];
  }
  return codes;
}

TEST(Fp8, DecodesAllCodes) {
  for (const Format& f : kFormats)
    for (const auto type : kTypes) {
      const at::Tensor codes = at::arange(256, at::kInt).to(at::kByte).view(dtype_of(f.format));
      const at::Tensor values = dequantize(codes, one(), type).to(at::kDouble);
      for (int code = 0; code < 256; ++code) {
        const double found = values[code].item<double>(), expected = f.value(code);
        EXPECT_TRUE(std::isnan(expected) ? std::isnan(found)
                                         : found == expected && std::signbit(found) == std::signbit(expected))
            << code << ": " << found << ", expected " << expected;
      }
    }
}

TEST(Fp8, EncodesAllValues) {
  for (const Format& f : kFormats)
    for (const auto type : kTypes) {
      std::vector<double> values;
      std::vector<int> expected;
      for (int code = 0; code < 256; ++code) {
        if (!std::isfinite(f.value(code))) continue;
        values.push_back(f.value(code));
        expected.push_back(code);
      }
      EXPECT_EQ(expected.size(), f.has_infinity ? 248u : 254u);
      EXPECT_EQ(codes_of(values, f.format, type), expected);
    }
}

TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (const Format& f : kFormats) {
    std::vector<double> numbers;
    std::vector<int> expected;
    for (int code = 0; code < f.largest_code(); ++code) {  // includes the subnormal steps
      const auto middle = static_cast<float>((f.value(code) + f.value(code + 1)) / 2);
      const int even = code % 2 == 0 ? code : code + 1;
      for (const int sign : {0, 0x80}) {
        const auto put = [&](float number, int nearest) {
          numbers.push_back(sign ? -number : number);
          expected.push_back(nearest | sign);
        };
        put(std::nextafter(middle, 0.0f), code);
        put(middle, even);
        put(std::nextafter(middle, 1e9f), code + 1);
      }
    }
    EXPECT_EQ(codes_of(numbers, f.format), expected);
    std::vector<double> middles;
    std::vector<int> evens;
    for (size_t i = 2; i < numbers.size(); i += 3) {
      middles.push_back(numbers[i - 1]);
      evens.push_back(expected[i - 1]);
    }
    EXPECT_EQ(codes_of(middles, f.format, at::kBFloat16), evens);
    EXPECT_EQ(codes_of(middles, f.format, at::kDouble), evens);
  }
}

TEST(Fp8, SaturatesAndKeepsNan) {
  for (const Format& f : kFormats) {
    EXPECT_EQ(f.value(f.largest_code()), largest(f.format));
    std::vector<double> numbers;
    for (const double factor : {1.001953125, 1.03125, 1.0625, 1.125, 2.0, 0x1p60})
      numbers.push_back(largest(f.format) * factor);
    numbers.push_back(kInfinity);
    for (size_t i = numbers.size(); i-- > 0;) numbers.push_back(-numbers[i]);
    std::vector<int> expected(numbers.size(), f.largest_code());
    for (size_t i = numbers.size() / 2; i < numbers.size(); ++i) expected[i] |= 0x80;
    EXPECT_EQ(codes_of(numbers, f.format), expected);
    for (const int code : codes_of(std::vector<double>(67, std::nan("")), f.format))
      EXPECT_TRUE(std::isnan(f.value(code)));
  }
}

TEST(Fp8, ScalesAmaxToTheLargestValue) {
  const at::Tensor found = at::tensor({3.0, 0.0, 1e-13, 448.0}, at::kFloat);
  const auto expect = [](const at::Tensor& scales, const std::vector<double>& expected) {
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(scales[i].item<float>(), expected[i]) << i;
  };
  expect(scale_of(found, Fp8::E4m3), {448.0 / 3, 448e12, 448e12, 1});
  expect(scale_of(found, Fp8::E5m2), {57344.0 / 3, 57344e12, 57344e12, 128});
  expect(scale_of(found, Fp8::E4m3, 2), {112.0 / 3, 112e12, 112e12, 0.25});
}

TEST(Fp8, RoundsScalesToPowersOfTwo) {
  for (int exponent = -126; exponent < 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    const at::Tensor scales =
        at::tensor({power, std::nextafter(power * 2, 0.0f), std::nextafter(power, 1e38f)}, at::kFloat);
    EXPECT_TRUE((power_of_two_below(scales) == power).all().item<bool>()) << exponent;
  }
}

TEST(Fp8, FindsTheLargestMagnitude) {
  for (const auto type : kTypes) {
    EXPECT_EQ(largest_magnitude(at::tensor({1.0, -3.0, 2.0}, at::kDouble).to(type)).item<float>(), 3);
    EXPECT_EQ(largest_magnitude(at::empty({0, 4}, type)).item<float>(), 0);
  }
  EXPECT_THROW(largest_magnitude(at::ones({2}, at::kLong)), Error);
  EXPECT_THROW(quantize(at::ones({2}, at::kHalf), Fp8::E4m3, one()), Error);
}

// An overflow must not become a finite value on its way through a layer.
TEST(Fp8, TurnsNonFiniteValuesIntoNan) {
  for (const double bad : {kInfinity, -kInfinity, std::nan("")})
    for (const Format& f : kFormats)
      for (const bool power : {false, true}) {
        at::Tensor x = at::ones({5}, at::kFloat);
        x[2] = bad;
        at::Tensor scale = scale_of(largest_magnitude(x), f.format);
        if (power) scale = power_of_two_below(scale);
        EXPECT_TRUE(dequantize(quantize(x, f.format, scale), scale, at::kFloat).isnan().all().item<bool>()) << bad;
      }
}

at::Tensor there_and_back(const at::Tensor& x, Fp8 format, bool power) {
  at::Tensor scale = scale_of(largest_magnitude(x), format);
  if (power) scale = power_of_two_below(scale);
  return dequantize(quantize(x, format, scale), scale, x.scalar_type());
}

TEST(Fp8, HasTheErrorOfTheFormat) {
  const at::Tensor x = normal({1 << 18}, 1).to(at::kFloat);
  const auto error = [&](Fp8 format, bool power) {
    return ((there_and_back(x, format, power) - x).square().mean() / x.square().mean()).sqrt().item<double>();
  };
  for (const bool power : {false, true}) {
    EXPECT_NEAR(error(Fp8::E4m3, power), 0.0263, 0.0005);
    EXPECT_NEAR(error(Fp8::E5m2, power), 2 * 0.0263, 0.001);  // slightly less than twice
  }
}

TEST(Fp8, KeepsExactValuesWithPowerOfTwoScales) {
  const at::Tensor x = at::tensor({3.0, -0.8125, 0.0, 1.5, 0.015625}, at::kFloat);
  for (const auto type : kTypes) EXPECT_TRUE(there_and_back(x.to(type), Fp8::E4m3, true).equal(x.to(type)));
  EXPECT_FALSE(there_and_back(x, Fp8::E4m3, false).equal(x));
}

}  // namespace
}  // namespace colossal::ops::fp8_test
