#include "colossal/ops/products/group_codes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr double kMaxHalf = 65504;

/// Expands one value per group to one value per input.
at::Tensor spread(const at::Tensor& of_groups, const GroupCodes& codes) {
  return of_groups.repeat_interleave(codes.group, 1).narrow(1, 0, codes.inputs());
}

/// Calls body(row, group, first input, number of inputs) for all groups, over threads.
template <class Body>
void for_groups(int64_t outputs, int64_t inputs, int64_t group, const Body& body) {
  parallel_for(0, outputs, std::max<int64_t>(1, 32768 / inputs), [&](int64_t from, int64_t to) {
    for (int64_t n = from; n < to; ++n)
      for (int64_t first = 0; first < inputs; first += group)
        body(n, first / group, first, std::min(group, inputs - first));
  });
}

/// Returns the largest magnitude as bits without the sign. Bits of finite values have the order of the values, and are
/// below the bits of all others.
int32_t largest_magnitude(const float* numbers, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t bits;
    std::memcpy(&bits, numbers + i, 4);
    largest = std::max(largest, bits & 0x7fffffff);
  }
  return largest;
}

/// Rounds to the nearest integer, ties to even, for values below 2^22, because the sum has no fraction bits.
float nearest(float x) {
  constexpr float kShift = 12582912;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

/// Range of the multiples of a scale that codes represent.
struct Multiples {
  float least, most;
  float origin;  ///< multiple of code 0
};

/// Computes the codes of a group: the nearest multiples of `scale` above `zero`.
void round_group(const float* numbers, int64_t count, float scale, float zero, const Multiples& multiples,
                 uint8_t* codes) {
  if (scale == 0) {
    std::fill_n(codes, count, static_cast<uint8_t>(-multiples.origin));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    float multiple = (numbers[i] - zero) / scale;
    multiple = multiple < multiples.least ? multiples.least : multiple;
    multiple = multiple > multiples.most ? multiples.most : multiple;
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(nearest(multiple) - multiples.origin));
  }
}

}  // namespace

at::Tensor GroupCodes::values() const {
  check();
  const at::Tensor numbers = codes.to(at::kFloat);
  if (minima.defined()) return numbers * spread(scales, *this) + spread(minima, *this);
  return (numbers - static_cast<double>(1 << (bits - 1))) * spread(scales, *this);
}

void GroupCodes::check() const {
  require(bits == 8 || bits == 4, "quantization", "codes must have 8 or 4 bits: got ", bits);
  require(group >= 8 && group % 8 == 0, "quantization", "groups must have a multiple of 8 inputs: got ", group);
  require(
      codes.defined() && codes.is_cpu() && codes.dim() == 2 && codes.scalar_type() == at::kByte && codes.size(1) > 0,
      "quantization", "codes must be bytes [out, in] on the CPU");
  const auto fits = [&](const at::Tensor& of_groups) {
    return of_groups.is_cpu() && of_groups.scalar_type() == at::kFloat && of_groups.dim() == 2 &&
           of_groups.size(0) == outputs() && of_groups.size(1) == groups();
  };
  require(scales.defined() && fits(scales), "quantization", "scales must be fp32, one per group, [", outputs(), ", ",
          groups(), "]");
  require(!minima.defined() || (bits == 4 && fits(minima)), "quantization",
          "minima need codes of 4 bits and must be fp32, one per group, [", outputs(), ", ", groups(), "]");
}

float binary16_factor(const at::Tensor& scales) {
  const double largest = scales.numel() == 0 ? 0 : scales.abs().max().item<double>();
  if (!(largest > 0) || !std::isfinite(largest)) return 1;
  return static_cast<float>(std::exp2(std::ceil(std::log2(largest / kMaxHalf))));
}

at::Tensor through_binary16(const at::Tensor& scales) {
  const double factor = binary16_factor(scales);
  return (scales / factor).to(at::kHalf).to(at::kFloat) * factor;
}

GroupCodes round_to_codes(const at::Tensor& weight, const RoundingOptions& options) {
  require(weight.is_cpu() && weight.dim() == 2 && weight.size(1) > 0 && weight.is_floating_point(), "quantization",
          "weights must be floating-point numbers [out, in] on the CPU");
  require(!options.minima || options.bits == 4, "quantization",
          "zero points (--zero-points) need 4 bits (--bits 4): got ", options.bits);
  require((options.bits == 8 || options.bits == 4) && options.group >= 8 && options.group % 8 == 0, "quantization",
          "quantized values must have 8 or 4 bits, and a group (--group-size) a multiple of 8 inputs: got ",
          options.bits, " bits and groups of ", options.group);
  const at::Tensor w = weight.to(at::kFloat).contiguous();
  const int64_t outputs = w.size(0), inputs = w.size(1), group = options.group, groups = (inputs + group - 1) / group;
  const auto* numbers = w.const_data_ptr<float>();
  GroupCodes out{.bits = options.bits, .group = group};
  out.codes = at::empty({outputs, inputs}, at::kByte);
  const at::Tensor largest = at::empty({outputs, groups}, at::kFloat);
  for_groups(outputs, inputs, group, [&](int64_t n, int64_t g, int64_t first, int64_t count) {
    const int32_t bits = largest_magnitude(numbers + n * inputs + first, count);
    std::memcpy(largest.mutable_data_ptr<float>() + n * groups + g, &bits, 4);
  });
  require(at::isfinite(largest).all().item<bool>(), "quantization", "weights must be finite");
  const float half = options.bits == 8 ? 127 : 7;
  at::Tensor zeros;  // [outputs, groups], with whole_zeros
  if (options.minima) {
    const at::Tensor limits = at::zeros({2, outputs, groups}, at::kFloat);  // the range of every group includes 0
    auto* least = limits.mutable_data_ptr<float>();
    for_groups(outputs, inputs, group, [&](int64_t n, int64_t g, int64_t first, int64_t count) {
      const float* of_group = numbers + n * inputs + first;
      float& low = least[n * groups + g];
      float& high = least[(outputs + n) * groups + g];
      for (int64_t i = 0; i < count; ++i) low = std::min(low, of_group[i]), high = std::max(high, of_group[i]);
    });
    if (options.whole_zeros) {
      out.scales = through_binary16((limits[1] - limits[0]) / 15.0).contiguous();
      zeros = (limits[0] / out.scales).nan_to_num(0, 0, 0).neg().round().clamp(0, 15);
      out.minima = (zeros * out.scales).neg();
    } else {
      // Both are rounded by one factor, as they will be stored, so that codes are computed for the stored values.
      const at::Tensor both = through_binary16(at::stack({(limits[1] - limits[0]) / 15.0, limits[0]}));
      out.scales = both[0].contiguous(), out.minima = both[1].contiguous();
    }
  } else {
    out.scales = through_binary16(largest / static_cast<double>(half)).contiguous();
  }
  const auto* scales = out.scales.const_data_ptr<float>();
  const auto* minima = options.minima ? out.minima.const_data_ptr<float>() : nullptr;
  const auto* whole = zeros.defined() ? zeros.const_data_ptr<float>() : nullptr;
  auto* codes = out.codes.mutable_data_ptr<uint8_t>();
  // Symmetric codes are centred on 2^(bits - 1) and do not use the lowest code.
  const Multiples multiples = minima ? Multiples{0, 15, 0} : Multiples{-half, half, -half - 1};
  for_groups(outputs, inputs, group, [&](int64_t n, int64_t g, int64_t first, int64_t count) {
    const int64_t at = n * inputs + first, of = n * groups + g;
    if (whole)  // multiples about 0; code `zero` is 0
      round_group(numbers + at, count, scales[of], 0, {-whole[of], 15 - whole[of], -whole[of]}, codes + at);
    else
      round_group(numbers + at, count, scales[of], minima ? minima[of] : 0, multiples, codes + at);
  });
  return out;
}

}  // namespace colossal::ops
