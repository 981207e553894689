#include "colossal/ops/block_codes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr int64_t kGrain = 64;  // blocks
constexpr int kDecades = 7;

/// 0 and the magnitudes above it. `finest`: the number of steps in the lowest decade.
std::vector<float> magnitudes(int finest) {
  std::vector<float> values{0};
  for (int decade = 0; decade < kDecades; ++decade) {
    const int steps = finest << decade;
    for (int i = 0; i < steps; ++i)
      values.push_back(static_cast<float>((0.1 + 0.9 * (i + 0.5) / steps) * std::pow(10.0, decade - (kDecades - 1))));
  }
  return values;
}

/// Magnitudes and, for every run of floats that share their upper bits, the code of the lowest of them. Borders between codes lie so far apart that a run
/// meets one at most: a look decides.
class Table {
 public:
  explicit Table(Codes kind) : is_signed_(kind == Codes::Signed), magnitudes_(magnitudes(is_signed_ ? 1 : 2)) {
    if (is_signed_)
      magnitudes_.back() = 1;
    else
      magnitudes_.push_back(1);
    for (size_t i = 0; i + 1 < magnitudes_.size(); ++i) borders_.push_back((magnitudes_[i] + magnitudes_[i + 1]) / 2);
    borders_.push_back(std::numeric_limits<float>::infinity());
    for (uint32_t key = kFirstKey; key <= kLastKey; ++key)
      start_[key - kFirstKey] = static_cast<uint8_t>(std::lower_bound(borders_.begin(), borders_.end(), std::bit_cast<float>(key << kShift)) - borders_.begin());
    const int most = static_cast<int>(magnitudes_.size()) - 1;
    for (int code = is_signed_ ? -most : 0; code <= most; ++code) values_.push_back(std::copysign(magnitudes_[static_cast<size_t>(std::abs(code))], static_cast<float>(code)));
    zero_ = is_signed_ ? most : 0;
  }
  const std::vector<float>& values() const { return values_; }

  /// codes[i] <- that of values[i] / divisor, which lies in [-1, 1]. No branches: signs are random.
  void encode(const float* values, int64_t count, float divisor, uint8_t* codes) const {
    // Locals: a store of a byte may change anything else.
    const uint8_t* start = start_.data();
    const float* borders = borders_.data();
    const int zero = zero_, signs = is_signed_ ? -1 : 0;
    for (int64_t i = 0; i < count; ++i) {
      const float x = values[i] / divisor, magnitude = std::fabs(x);
      const uint32_t key = std::clamp(std::bit_cast<uint32_t>(magnitude) >> kShift, kFirstKey, kLastKey);
      int code = start[key - kFirstKey];
      code += magnitude > borders[code];
      const int sign = (std::bit_cast<int32_t>(x) >> 31) & signs;  // -1 below zero
      codes[i] = static_cast<uint8_t>(zero + ((code ^ sign) - sign));
    }
  }

 private:
  static constexpr int kShift = 14;  // nine bits of the mantissa are left
  static constexpr uint32_t kFirstKey = 0x33800000u >> kShift, kLastKey = 0x3F800000u >> kShift;  // 2^-24, below every border, to 1
  bool is_signed_;
  int zero_ = 0;
  std::vector<float> magnitudes_, borders_, values_;
  std::array<uint8_t, kLastKey - kFirstKey + 1> start_{};
};

const Table& table(Codes kind) {
  static const Table signed_table(Codes::Signed), positive_table(Codes::Positive);
  return kind == Codes::Signed ? signed_table : positive_table;
}

void check(const at::Tensor& values, const at::Tensor& codes, const at::Tensor& scales) {
  const int64_t n = values.numel(), blocks = (n + kCodeBlock - 1) / kCodeBlock;
  const auto fits = [](const at::Tensor& t, at::ScalarType type, int64_t size) {
    return t.is_cpu() && t.scalar_type() == type && t.dim() == 1 && t.numel() == size && t.is_contiguous();
  };
  require(fits(values, at::kFloat, n) && fits(codes, at::kByte, n) && fits(scales, at::kFloat, blocks), "block_codes",
          "takes contiguous CPU tensors: fp32 [n], uint8 [n] and fp32 [n / 256]: got ", values.scalar_type(), " ", values.sizes(), ", ",
          codes.scalar_type(), " ", codes.sizes(), ", ", scales.scalar_type(), " ", scales.sizes());
}

}  // namespace

const std::vector<float>& code_values(Codes kind) { return table(kind).values(); }

void encode_block(const float* values, int64_t count, Codes kind, uint8_t* codes, float* scale) {
  constexpr int64_t kLanes = 8;  // chains of comparisons that do not wait for one another
  float most[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) most[lane] = std::max(most[lane], std::fabs(values[i + lane]));
  for (; i < count; ++i) most[0] = std::max(most[0], std::fabs(values[i]));
  *scale = *std::max_element(most, most + kLanes);
  const float divisor = *scale > 0 ? *scale : 1;
  table(kind).encode(values, count, divisor, codes);
}

void decode_block(const uint8_t* codes, float scale, int64_t count, Codes kind, float* values) {
  const float* meaning = table(kind).values().data();
  for (int64_t i = 0; i < count; ++i) values[i] = meaning[codes[i]] * scale;
}

void encode_blocks(const at::Tensor& values, Codes kind, const at::Tensor& codes, const at::Tensor& scales) {
  check(values, codes, scales);
  const float* x = pointer<float>(values);
  auto* code = pointer<uint8_t>(codes);
  auto* scale = pointer<float>(scales);
  parallel_for(0, scales.numel(), kGrain, [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block) {
      const int64_t begin = block * kCodeBlock;
      encode_block(x + begin, std::min(kCodeBlock, values.numel() - begin), kind, code + begin, scale + block);
    }
  });
}

void decode_blocks(const at::Tensor& codes, const at::Tensor& scales, Codes kind, const at::Tensor& values) {
  check(values, codes, scales);
  const auto* code = pointer<uint8_t>(codes);
  const auto* scale = pointer<float>(scales);
  float* x = pointer<float>(values);
  parallel_for(0, scales.numel(), kGrain, [&](int64_t from, int64_t to) {
    for (int64_t block = from; block < to; ++block) {
      const int64_t begin = block * kCodeBlock;
      decode_block(code + begin, scale[block], std::min(kCodeBlock, values.numel() - begin), kind, x + begin);
    }
  });
}

}  // namespace colossal::ops
