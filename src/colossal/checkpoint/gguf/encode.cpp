#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "colossal/checkpoint/gguf/blocks.h"

namespace colossal::checkpoint {
namespace {

using Byte = unsigned char;

/// Writes `value` in half precision and returns the rounded value that readers get.
float put_half(Byte* to, float value) {
  const c10::Half half(value);
  std::memcpy(to, &half.x, sizeof half.x);
  return static_cast<float>(half);
}

void encode_f32(const float* x, Byte* block) { std::memcpy(block, x, sizeof *x); }
void encode_f16(const float* x, Byte* block) { put_half(block, *x); }
void encode_bf16(const float* x, Byte* block) {
  const c10::BFloat16 rounded(*x);
  std::memcpy(block, &rounded.x, sizeof rounded.x);
}

/// Returns the value with the largest magnitude, with its sign.
float furthest(const float* x, int count) {
  float most = x[0];
  for (int i = 1; i < count; ++i)
    if (std::fabs(x[i]) > std::fabs(most)) most = x[i];
  return most;
}

/// Returns 1 / d, or 0 if that is not finite because d is 0 or too small.
float inverse_of(float d) { return std::isfinite(1 / d) ? 1 / d : 0; }

void encode_q8_0(const float* x, Byte* block) {
  const float d = std::fabs(furthest(x, 32)) / 127, inverse = inverse_of(d);
  put_half(block, d);
  for (int i = 0; i < 32; ++i) block[2 + i] = static_cast<Byte>(static_cast<int8_t>(std::round(x[i] * inverse)));
}

void encode_q4_0(const float* x, Byte* block) {
  const float d = furthest(x, 32) / -8, inverse = inverse_of(d);
  put_half(block, d);
  const auto code = [&](float value) { return std::clamp(static_cast<int>(value * inverse + 8.5F), 0, 15); };
  for (int i = 0; i < 16; ++i) block[2 + i] = static_cast<Byte>(code(x[i]) | code(x[i + 16]) << 4);
}

/// Sets the weight of each value's error: large values weigh more, because they contribute to large sums.
void weigh(const float* x, int count, float* weights) {
  float squares = 0;
  for (int i = 0; i < count; ++i) squares += x[i] * x[i];
  const float typical = std::sqrt(squares / static_cast<float>(count));
  for (int i = 0; i < count; ++i) weights[i] = typical + std::fabs(x[i]);
}

constexpr int kSteps = 8;  // number of candidates on either side of the plain scale

/// Values x = scale q - least for q in [0, 15], with least >= 0.
struct Affine {
  float scale = 0, least = 0;
};

/// Returns the weighted sum of squared errors of `affine`.
float error_of(const float* x, const float* weights, const Affine& affine) {
  float error = 0;
  for (int i = 0; i < 32; ++i) {
    const float code =
        affine.scale > 0 ? std::clamp(std::nearbyint((x[i] + affine.least) / affine.scale), 0.0F, 15.0F) : 0;
    const float off = affine.scale * code - affine.least - x[i];
    error += weights[i] * off * off;
  }
  return error;
}

/// Rounds the values with each candidate step, then fits scale and minimum to these integers by least squares. Returns
/// the best fit.
Affine fit_affine(const float* x) {
  float weights[32];
  weigh(x, 32, weights);
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float least = std::min(*low, 0.0F), range = *high - least;
  if (range <= 0) return {0, -least};
  Affine best{range / 15, -least};
  float best_error = error_of(x, weights, best);
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float inverse = (15 + 0.125F * static_cast<float>(step)) / range;
    float sum_w = 0, sum_q = 0, sum_qq = 0, sum_x = 0, sum_xq = 0;
    for (int i = 0; i < 32; ++i) {
      const float q = std::clamp(std::nearbyint((x[i] - least) * inverse), 0.0F, 15.0F), w = weights[i];
      sum_w += w, sum_q += w * q, sum_qq += w * q * q, sum_x += w * x[i], sum_xq += w * x[i] * q;
    }
    const float determinant = sum_w * sum_qq - sum_q * sum_q;
    if (determinant <= 0) continue;
    Affine found{(sum_w * sum_xq - sum_x * sum_q) / determinant, (sum_q * sum_xq - sum_qq * sum_x) / determinant};
    if (found.least < 0) found = {sum_xq / sum_qq, 0};
    if (!(found.scale > 0)) continue;
    const float error = error_of(x, weights, found);
    if (error < best_error) best = found, best_error = error;
  }
  return best;
}

/// Returns the ratio of `value` to the largest value `most`, as an integer in [0, 63].
int share(float value, float most) {
  return most > 0 ? std::clamp(static_cast<int>(std::nearbyint(63 * value / most)), 0, 63) : 0;
}

void encode_q4_k(const float* x, Byte* block) {
  Affine groups[8];
  Affine most;
  for (int g = 0; g < 8; ++g) {
    groups[g] = fit_affine(x + 32 * g);
    most.scale = std::max(most.scale, groups[g].scale);
    most.least = std::max(most.least, groups[g].least);
  }
  const float d = put_half(block, most.scale / 63), d_min = put_half(block + 2, most.least / 63);
  Byte *packed = block + 4, *codes = block + 16;
  std::memset(packed, 0, 12);
  std::memset(codes, 0, 128);
  for (int g = 0; g < 8; ++g) {
    const int scale = share(groups[g].scale, most.scale), least = share(groups[g].least, most.least);
    if (g < 4) {
      packed[g] |= static_cast<Byte>(scale), packed[g + 4] |= static_cast<Byte>(least);
    } else {
      packed[g + 4] = static_cast<Byte>((scale & 15) | (least & 15) << 4);
      packed[g - 4] |= static_cast<Byte>(scale >> 4 << 6), packed[g] |= static_cast<Byte>(least >> 4 << 6);
    }
    const float step = d * static_cast<float>(scale), offset = d_min * static_cast<float>(least);
    for (int i = 0; i < 32 && step > 0; ++i) {
      const float code = std::clamp(std::nearbyint((x[32 * g + i] + offset) / step), 0.0F, 15.0F);
      codes[g / 2 * 32 + i] |= static_cast<Byte>(static_cast<int>(code) << (g % 2 * 4));
    }
  }
}

/// Fits x = scale q for q in [-32, 31], like fit_affine().
float fit_scale(const float* x) {
  float weights[16];
  weigh(x, 16, weights);
  const float most = furthest(x, 16);
  if (most == 0) return 0;
  float best = 0, best_gain = 0;
  for (int step = -kSteps; step <= kSteps; ++step) {
    const float inverse = -(32 + 0.125F * static_cast<float>(step)) / most;  // the largest magnitude becomes about -32
    float sum_xq = 0, sum_qq = 0;
    for (int i = 0; i < 16; ++i) {
      const float q = std::clamp(std::nearbyint(x[i] * inverse), -32.0F, 31.0F);
      sum_xq += weights[i] * x[i] * q, sum_qq += weights[i] * q * q;
    }
    // A least-squares fit reduces the error by (sum w x q)^2 / sum w q^2.
    if (sum_qq > 0 && sum_xq * sum_xq > best_gain * sum_qq) best = sum_xq / sum_qq, best_gain = sum_xq * best;
  }
  return best;
}

void encode_q6_k(const float* x, Byte* block) {
  float scales[16];
  for (int g = 0; g < 16; ++g) scales[g] = fit_scale(x + 16 * g);
  // The scale with the largest magnitude becomes -128.
  const float most = furthest(scales, 16), d = put_half(block + 208, most / -128);
  Byte *low = block, *high = block + 128;
  std::memset(block, 0, 192);
  for (int g = 0; g < 16; ++g) {
    const float share = d == 0 ? 0 : std::clamp(std::nearbyint(scales[g] / d), -128.0F, 127.0F);
    block[192 + g] = static_cast<Byte>(static_cast<int8_t>(share));
    const float step = d * share;
    for (int i = 16 * g; i < 16 * (g + 1); ++i) {
      const float near = step == 0 ? 0 : std::clamp(std::nearbyint(x[i] / step), -32.0F, 31.0F);
      const int code = static_cast<int>(near) + 32;
      low[i / 128 * 64 + i % 64] |= static_cast<Byte>((code & 15) << (i % 128 / 64 * 4));
      high[i / 128 * 32 + i % 32] |= static_cast<Byte>(code >> 4 << (i % 128 / 32 * 2));
    }
  }
}

using Encode = void (*)(const float* numbers, Byte* block);

Encode encoder_of(const formats::GgufType& type) {
  static constexpr std::pair<std::string_view, Encode> kEncoders[] = {
      {"F32", encode_f32},   {"F16", encode_f16},   {"BF16", encode_bf16}, {"Q4_0", encode_q4_0},
      {"Q8_0", encode_q8_0}, {"Q4_K", encode_q4_k}, {"Q6_K", encode_q6_k}};
  for (const auto& [name, encode] : kEncoders)
    if (type.name == name) return encode;
  return nullptr;
}

}  // namespace

bool can_encode(const formats::GgufType& type) { return encoder_of(type) != nullptr; }

void encode_gguf(const formats::GgufType& type, const float* numbers, int64_t count, char* blocks) {
  const Encode encode = encoder_of(type);
  Byte* block = reinterpret_cast<Byte*>(blocks);
  for (int64_t i = 0; i < count; i += type.block, block += type.bytes) encode(numbers + i, block);
}

}  // namespace colossal::checkpoint
