#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>
#include <string_view>

#include "colossal/checkpoint/gguf/blocks.h"

namespace colossal::checkpoint {
namespace {

using Byte = unsigned char;

float half_at(const Byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}

uint32_t word_at(const Byte* at) {
  uint32_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

void decode_f32(const Byte* block, float* x) { std::memcpy(x, block, sizeof *x); }
void decode_f16(const Byte* block, float* x) { *x = half_at(block); }
void decode_bf16(const Byte* block, float* x) {
  uint16_t bits;
  std::memcpy(&bits, block, sizeof bits);
  *x = static_cast<float>(c10::BFloat16(bits, c10::BFloat16::from_bits()));
}

/// Unpacks 32 values of 4 bits, the first 16 from the lower halves of the bytes. `high` has a fifth bit for each.
void codes_of_32(const Byte* low, uint32_t high, int* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = (low[i] & 15) | static_cast<int>(high >> i & 1) << 4;
    codes[i + 16] = low[i] >> 4 | static_cast<int>(high >> (i + 16) & 1) << 4;
  }
}

void decode_q4_0(const Byte* block, float* x) {
  int codes[32];
  codes_of_32(block + 2, 0, codes);
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) x[i] = d * static_cast<float>(codes[i] - 8);
}

void decode_q4_1(const Byte* block, float* x) {
  int codes[32];
  codes_of_32(block + 4, 0, codes);
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 32; ++i) x[i] = d * static_cast<float>(codes[i]) + m;
}

void decode_q5_0(const Byte* block, float* x) {
  int codes[32];
  codes_of_32(block + 6, word_at(block + 2), codes);
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) x[i] = d * static_cast<float>(codes[i] - 16);
}

void decode_q5_1(const Byte* block, float* x) {
  int codes[32];
  codes_of_32(block + 8, word_at(block + 4), codes);
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 32; ++i) x[i] = d * static_cast<float>(codes[i]) + m;
}

void decode_q8_0(const Byte* block, float* x) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) x[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
}

// In blocks of 256 values, 32 bytes store several groups of 32 values: each group uses 2 (or 4) bits of every byte, the
// first group the lowest bits.

void decode_q2_k(const Byte* block, float* x) {
  const Byte *scales = block, *codes = block + 16;
  const float d = half_at(block + 80), d_min = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const Byte scale = scales[i / 16];
    const float step = d * static_cast<float>(scale & 15), least = d_min * static_cast<float>(scale >> 4);
    const int code = codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    x[i] = step * static_cast<float>(code) - least;
  }
}

void decode_q3_k(const Byte* block, float* x) {
  const Byte *high = block, *codes = block + 32, *scales = block + 96;
  const float d = half_at(block + 108);
  for (int i = 0; i < 256; ++i) {
    const int group = i / 16;
    const int scale = (scales[group % 8] >> (group / 8 * 4) & 15) | (scales[8 + group % 4] >> (group / 4 * 2) & 3) << 4;
    const float step = d * static_cast<float>(scale - 32);
    const int low = codes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    x[i] = step * static_cast<float>(low - ((high[i % 32] >> (i / 32) & 1) ? 0 : 4));
  }
}

/// Scale and minimum of a group of Q4_K or Q5_K: 12 bytes hold eight of each, with 6 bits.
struct GroupScale {
  int scale, least;
};
GroupScale group_scale(const Byte* packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  return {(packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4, packed[group + 4] >> 4 | (packed[group] >> 6) << 4};
}

/// `high` has 32 bytes with the fifth bit of each group's values; null = no fifth bit.
void decode_groups(const Byte* block, const Byte* high, const Byte* low, float* x) {
  const float d = half_at(block), d_min = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const GroupScale its = group_scale(block + 4, group);
    const float step = d * static_cast<float>(its.scale), least = d_min * static_cast<float>(its.least);
    for (int i = 0; i < 32; ++i) {
      int code = low[group / 2 * 32 + i] >> (group % 2 * 4) & 15;
      if (high) code |= (high[i] >> group & 1) << 4;
      x[group * 32 + i] = step * static_cast<float>(code) - least;
    }
  }
}

void decode_q4_k(const Byte* block, float* x) { decode_groups(block, nullptr, block + 16, x); }
void decode_q5_k(const Byte* block, float* x) { decode_groups(block, block + 16, block + 48, x); }

void decode_q6_k(const Byte* block, float* x) {
  const Byte *low = block, *high = block + 128, *scales = block + 192;
  const float d = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const float step = d * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    const int bits = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
    const int code = bits | (high[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) << 4;
    x[i] = step * static_cast<float>(code - 32);
  }
}

using Decode = void (*)(const Byte* block, float* numbers);

Decode decoder_of(const formats::GgufType& type) {
  static constexpr std::pair<std::string_view, Decode> kDecoders[] = {
      {"F32", decode_f32},   {"F16", decode_f16},   {"BF16", decode_bf16}, {"Q4_0", decode_q4_0}, {"Q4_1", decode_q4_1},
      {"Q5_0", decode_q5_0}, {"Q5_1", decode_q5_1}, {"Q8_0", decode_q8_0}, {"Q2_K", decode_q2_k}, {"Q3_K", decode_q3_k},
      {"Q4_K", decode_q4_k}, {"Q5_K", decode_q5_k}, {"Q6_K", decode_q6_k}};
  for (const auto& [name, decode] : kDecoders)
    if (type.name == name) return decode;
  return nullptr;
}

}  // namespace

bool can_decode(const formats::GgufType& type) { return decoder_of(type) != nullptr; }

void decode_gguf(const formats::GgufType& type, const char* blocks, int64_t count, float* numbers) {
  const Decode decode = decoder_of(type);
  const Byte* block = reinterpret_cast<const Byte*>(blocks);
  for (int64_t i = 0; i < count; i += type.block, block += type.bytes) decode(block, numbers + i);
}

}  // namespace colossal::checkpoint
