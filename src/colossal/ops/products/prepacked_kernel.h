// Bodies of the products with panels; see prepacked_kernels.h. The translation unit of each instruction set includes
// this header and names its table, COLOSSAL_PREPACKED.
#pragma once
#include "colossal/ops/products/prepacked_kernels.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int kOutputs = static_cast<int>(kPanelOutputs);
constexpr int kPanelVectors = kOutputs / kLanes<float>;
/// Number of accumulators that fit the registers: 24 of 32, or 12 of 16.
constexpr int kMaxSums = kVectorBytes == 64 ? 24 : 12;

typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef uint8_t PanelBytes __attribute__((vector_size(kVectorBytes)));

/// Sums of a tile in the computing type, row after row.
struct alignas(64) PanelSums {
  float of[kTileRows][kOutputs];
};

template <class Vector>
inline Vector load_bytes(const void* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline int32_t load_four(const void* p) {
  int32_t v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Number of a panel's vectors that are computed at a time with `Rows` rows.
template <int Rows>
constexpr int vectors_with() {
  const int room = kMaxSums / Rows;
  return room >= kPanelVectors ? kPanelVectors : room >= 2 ? 2 : 1;
}

// Calls part(first row, Rows, first vector, vectors) over a tile, in parts whose sums fit the registers.
template <class Part>
inline __attribute__((always_inline)) void for_parts(int64_t rows, const Part& part) {
  int64_t row = 0;
  const auto take = [&](auto count) __attribute__((always_inline)) {
    constexpr int kRows = decltype(count)::value;
    constexpr int kVectors = vectors_with<kRows>();
    for (; row + kRows <= rows; row += kRows)
      for (int first = 0; first < kPanelVectors; first += kVectors)
        part(row, count, first, std::integral_constant<int, kVectors>());
  };
  if constexpr (kVectorBytes == 64) take(std::integral_constant<int, 12>());
  if constexpr (kVectorBytes == 64) take(std::integral_constant<int, 8>());
  if constexpr (kVectorBytes != 64) take(std::integral_constant<int, 6>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

// Adds the bias to the sums and writes them to y.
inline void write_panel(const PanelProduct& p, int64_t rows, PanelSums& sums) {
  for (int64_t i = 0; i < rows; ++i) {
    float* row = sums.of[i];
    if (p.bias)
      for (int64_t j = 0; j < p.columns; ++j) row[j] += p.bias[j];
    const auto put = [&](auto* y) {
      for_vectors<float>(p.columns, [&](int64_t j, auto part) { store(y + j, load(row + j, Whole{}), part); });
    };
    if (p.narrow)
      put(static_cast<Bf16*>(p.y) + i * p.stride);
    else
      put(static_cast<float*>(p.y) + i * p.stride);
  }
}

// One element per lane.
struct Single {
  using Stored = float;
  using Weight = float;
  static constexpr int64_t kInputs = 1;
  Vec<float> value;
  static Single weights(const float* p) { return {load(p, Whole{})}; }
  static Single number(const float* p) { return {splat<float>(*p)}; }
  static Vec<float> add(Vec<float> sum, Single a, Single b) { return sum + b.value * a.value; }
};

// One element per lane, of a weight in e4m3. Its exponent and mantissa are moved to their position in fp32; a factor
// then corrects the different exponent bias. Subnormal e4m3 values are subnormal in between, which is slow; few weights
// are that small.
struct SingleFp8 {
  using Stored = float;
  using Weight = int8_t;
  static constexpr int64_t kInputs = 1;
  Vec<float> value;
  static SingleFp8 weights(const int8_t* p) {
    typedef int8_t Bytes __attribute__((vector_size(kLanes<float>)));
    const Ints codes = __builtin_convertvector(load_bytes<Bytes>(p), Ints);  // the upper bits are copies of the sign
    return {(Vec<float>)((codes << 20) & static_cast<int32_t>(0x87F00000u)) * 0x1p120f};
  }
  static SingleFp8 number(const float* p) { return {splat<float>(*p)}; }
  static Vec<float> add(Vec<float> sum, SingleFp8 a, SingleFp8 b) { return sum + b.value * a.value; }
};

// Two neighbouring bf16 elements per lane; products are added in fp32.
struct Pairs {
  using Stored = uint32_t;
  using Weight = uint32_t;
  static constexpr int64_t kInputs = 2;
#if defined(__AVX512BF16__)
  __m512bh bits;
  static Pairs weights(const uint32_t* p) { return {(__m512bh)load_bytes<__m512i>(p)}; }
  static Pairs number(const uint32_t* p) { return {(__m512bh)_mm512_set1_epi32(load_four(p))}; }
  static Vec<float> add(Vec<float> sum, Pairs a, Pairs b) {
    return (Vec<float>)_mm512_dpbf16_ps((__m512)sum, a.bits, b.bits);
  }
#else
  Vec<float> first, second;
  static Pairs of(Words words) { return {(Vec<float>)(words << 16), (Vec<float>)(words & 0xFFFF0000u)}; }
  static Pairs weights(const uint32_t* p) { return of(load_bytes<Words>(p)); }
  static Pairs number(const uint32_t* p) { return of(*p - Words{}); }
  static Vec<float> add(Vec<float> sum, Pairs a, Pairs b) {
    sum += a.first * b.first;
    return sum + a.second * b.second;
  }
#endif
};

template <class Number, int Rows, int Vectors>
inline void numbers_part(const typename Number::Stored* x, int64_t pitch, const typename Number::Weight* w,
                         int64_t count, float (*out)[kOutputs]) {
  Vec<float> sums[Rows][Vectors] = {};
  for (int64_t k = 0; k < count; ++k) {
    Number weights[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) weights[v] = Number::weights(w + k * kOutputs + v * kLanes<float>);
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) {
      const Number number = Number::number(x + k * pitch + i);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[i][v] = Number::add(sums[i][v], weights[v], number);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(out[i] + v * kLanes<float>, sums[i][v], Whole{});
}

template <class Number>
void multiply_numbers(const PanelProduct& p, int64_t rows) {
  using Stored = typename Number::Stored;
  using Weight = typename Number::Weight;
  PanelSums sums;
  for_parts(rows, [&](int64_t row, auto count, int first, auto vectors) {
    numbers_part<Number, decltype(count)::value, decltype(vectors)::value>(
        static_cast<const Stored*>(p.tile) + row, rows, static_cast<const Weight*>(p.panel) + first * kLanes<float>,
        p.inputs / Number::kInputs, reinterpret_cast<float (*)[kOutputs]>(&sums.of[row][first * kLanes<float>]));
  });
  if constexpr (std::is_same_v<Number, SingleFp8>) {
    const auto* scales = reinterpret_cast<const float*>(static_cast<const char*>(p.panel) + p.inputs * kOutputs);
    for (int64_t i = 0; i < rows; ++i)
      for (int j = 0; j < kOutputs; ++j) sums.of[i][j] *= scales[j];
  }
  write_panel(p, rows, sums);
}

// Sums of products of four neighbouring 8-bit codes, in 32 bits: exact. `w` holds unsigned codes, `x` four signed
// codes. kSigned: w holds 128 + code and the sum over codes is required. If kTakesSumsAway, first_sum() subtracts the
// products with 128.
#if defined(__AVX512VNNI__)
constexpr bool kTakesSumsAway = true;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  // Written in assembly, because the compiler would keep copies of the sum and run out of registers.
  const __m512i numbers = _mm512_set1_epi32(x);
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(numbers));
}
#elif defined(__AVX512BW__)
// The sum of two products fits 16 bits: codes are within 127, or within 15.
constexpr bool kTakesSumsAway = false;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  const __m512i numbers = _mm512_set1_epi32(x);
  __m512i pairs;
  if constexpr (kSigned) {
    const __m512i codes = _mm512_xor_si512((__m512i)w, _mm512_set1_epi8(-128));
    const __m512i turned = _mm512_mask_sub_epi8(codes, _mm512_movepi8_mask(numbers), _mm512_setzero_si512(), codes);
    pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(numbers), turned);
  } else {
    pairs = _mm512_maddubs_epi16((__m512i)w, numbers);
  }
  sum += (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#elif defined(__AVX2__)
// As for AVX-512BW, the sum of two products fits 16 bits.
constexpr bool kTakesSumsAway = false;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  const __m256i numbers = _mm256_set1_epi32(x), ones = _mm256_set1_epi16(1);
  __m256i pairs;
  if constexpr (kSigned)
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(numbers),
                                 _mm256_sign_epi8(_mm256_xor_si256((__m256i)w, _mm256_set1_epi8(-128)), numbers));
  else
    pairs = _mm256_maddubs_epi16((__m256i)w, numbers);
  sum += (Ints)_mm256_madd_epi16(pairs, ones);
}
#else
constexpr bool kTakesSumsAway = true;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  const Words words = (Words)w;
  for (int byte = 0; byte < 4; ++byte)
    sum += (Ints)((words >> (8 * byte)) & 0xFFu) * static_cast<int32_t>(static_cast<int8_t>(x >> (8 * byte)));
}
#endif

// Returns the initial value of a group's sums. It corrects for the offset of stored codes: 128 for 8 bits; 8 for 4 bits
// without minima.
template <int Bits>
inline int32_t first_sum(int32_t sum_of_codes, bool minima) {
  if constexpr (Bits == 8) return kTakesSumsAway ? -128 * sum_of_codes : 0;
  return minima ? 0 : -8 * sum_of_codes;
}

template <int Bits, int Rows, int Vectors>
inline __attribute__((always_inline)) void group_sums(const int32_t* x, int64_t pitch, const char* w, int64_t group,
                                                      Ints (&sums)[Rows][Vectors]) {
  if constexpr (Bits == 8) {
    for (int64_t k = 0; k < group / 4; ++k) {
      PanelBytes weights[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) weights[v] = load_bytes<PanelBytes>(w + k * 4 * kOutputs + v * kVectorBytes);
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) add_products<true>(sums[i][v], weights[v], x[k * pitch + i]);
    }
  } else {
    for (int64_t k = 0; k < group / 8; ++k) {
      PanelBytes lower[Vectors], upper[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const PanelBytes both = load_bytes<PanelBytes>(w + k * 4 * kOutputs + v * kVectorBytes);
        lower[v] = both & 0x0F;
        upper[v] = (PanelBytes)((Words)both >> 4) & 0x0F;
      }
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
          add_products<false>(sums[i][v], lower[v], x[2 * k * pitch + i]);
          add_products<false>(sums[i][v], upper[v], x[(2 * k + 1) * pitch + i]);
        }
    }
  }
}

template <int Bits, int Rows, int Vectors>
inline void codes_part(const PanelProduct& p, int64_t row, int64_t pitch, int first, PanelSums& out) {
  const int64_t groups = p.inputs / p.group;
  const int64_t codes_bytes = p.group * Bits / 8 * kOutputs, halves = kOutputs * (p.minima ? 2 : 1);
  const char* w = static_cast<const char*>(p.panel);
  const int32_t* x = static_cast<const int32_t*>(p.tile) + row;
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(&out.of[row + i][(first + v) * kLanes<float>], Vec<float>{}, Whole{});
  for (int64_t g = 0; g < groups; ++g) {
    Ints sums[Rows][Vectors];
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[i][v] = first_sum<Bits>(p.sums[g * pitch + row + i], p.minima) - Ints{};
    group_sums<Bits, Rows, Vectors>(x, pitch, w + first * kVectorBytes, p.group, sums);
    const Half* scales = reinterpret_cast<const Half*>(w + codes_bytes) + first * kLanes<float>;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Vec<float> scale = load(scales + v * kLanes<float>, Whole{});
      const Vec<float> minimum = p.minima ? load(scales + kOutputs + v * kLanes<float>, Whole{}) : Vec<float>{};
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i) {
        const float of_row = p.scales[g * pitch + row + i];
        float* to = &out.of[row + i][(first + v) * kLanes<float>];
        Vec<float> sum = load(to, Whole{}) + __builtin_convertvector(sums[i][v], Vec<float>) * (scale * of_row);
        if (p.minima) sum += minimum * (of_row * static_cast<float>(p.sums[g * pitch + row + i]));
        store(to, sum, Whole{});
      }
    }
    x += p.group / 4 * pitch;
    w += codes_bytes + halves * static_cast<int64_t>(sizeof(Half));
  }
}

template <int Bits>
void multiply_codes(const PanelProduct& p, int64_t rows) {
  PanelSums sums;
  for_parts(rows, [&](int64_t row, auto count, int first, auto vectors) {
    codes_part<Bits, decltype(count)::value, decltype(vectors)::value>(p, row, rows, first, sums);
  });
  write_panel(p, rows, sums);
}

void encode_row(const float* x, int64_t inputs, int64_t group, int8_t* codes, float* scales, int32_t* sums) {
  for (int64_t g = 0; g * group < inputs; ++g) {
    const float* from = x + g * group;
    float largest = 0, not_finite = 0;  // not_finite is 0, or NaN, which makes the scale NaN
    for (int64_t k = 0; k < group; ++k) {
      const float magnitude = from[k] < 0 ? -from[k] : from[k];
      largest = magnitude > largest ? magnitude : largest;
      not_finite += 0 * from[k];
    }
    const float scale = largest / 127.0f + not_finite, inverse = largest > 0 ? 127.0f / largest : 0;
    int32_t sum = 0;
    for (int64_t k = 0; k < group; ++k) {
      // Adding kRoundingMagic rounds to an integer, ties to even, in the low bits.
      const float rounded = from[k] * inverse + Simd<float>::kRoundingMagic;
      int32_t bits;
      __builtin_memcpy(&bits, &rounded, sizeof bits);
      const int32_t code = static_cast<int8_t>(bits & 0xFF);
      codes[g * group + k] = static_cast<int8_t>(code);
      sum += code;
    }
    scales[g] = scale;
    sums[g] = sum;
  }
}

}  // namespace

extern const PrepackedKernels COLOSSAL_PREPACKED;
const PrepackedKernels COLOSSAL_PREPACKED{.name = COLOSSAL_PREPACKED_NAME,
                                          .multiply_float = multiply_numbers<Single>,
                                          .multiply_bf16 = multiply_numbers<Pairs>,
                                          .multiply_fp8 = multiply_numbers<SingleFp8>,
                                          .multiply_int8 = multiply_codes<8>,
                                          .multiply_int4 = multiply_codes<4>,
                                          .encode_row = encode_row};

}  // namespace colossal::ops
