// The loops of reduce_arrays, included once per instruction set; everything is in an anonymous namespace so that the
// linker can not swap the variants.
#pragma once
#include <algorithm>
#include <cstring>

#include "colossal/comm/backends/reduction.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace colossal::comm {
namespace {

constexpr int64_t kBlock = 1024;  // elements accumulated at a time, few enough for the first-level cache

// Storage type, accumulator type, and the two conversions, per dtype.
template <class T>
struct Plain {
  using Stored = T;
  using Sum = T;
  static void load(Sum* to, const Stored* from) {
    for (int64_t i = 0; i < kBlock; ++i) to[i] = from[i];
  }
  static void store(Stored* to, const Sum* from) {
    for (int64_t i = 0; i < kBlock; ++i) to[i] = from[i];
  }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Sum = float;
  static void load(Sum* to, const Stored* from) {
    for (int64_t i = 0; i < kBlock; ++i) {
      const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
      std::memcpy(&to[i], &bits, sizeof bits);
    }
  }
  static void store(Stored* to, const Sum* from) {  // round to nearest even, as c10 does
    for (int64_t i = 0; i < kBlock; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &from[i], sizeof bits);
      const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
      to[i] = static_cast<uint16_t>(from[i] != from[i] ? 0x7fc0u : rounded);
    }
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Sum = float;
#ifdef __F16C__
  static void load(Sum* to, const Stored* from) {
    for (int64_t i = 0; i < kBlock; i += 8) {
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
  }
  static void store(Stored* to, const Sum* from) {
    for (int64_t i = 0; i < kBlock; i += 8) {
      const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
    }
  }
#else
  static void load(Sum* to, const Stored* from) {
    for (int64_t i = 0; i < kBlock; ++i) to[i] = c10::detail::fp16_ieee_to_fp32_value(from[i]);
  }
  static void store(Stored* to, const Sum* from) {
    for (int64_t i = 0; i < kBlock; ++i) to[i] = c10::detail::fp16_ieee_from_fp32_value(from[i]);
  }
#endif
};

struct Add {
  template <class T>
  static T of(T a, T b) {
    return static_cast<T>(a + b);
  }
};
struct Larger {
  template <class T>
  static T of(T a, T b) {
    return b > a || b != b ? b : a;
  }
};
struct Smaller {
  template <class T>
  static T of(T a, T b) {
    return b < a || b != b ? b : a;
  }
};
struct Or {
  static uint8_t of(uint8_t a, uint8_t b) { return (a | b) != 0; }
};

/// Reduces whole blocks: the constant trip count lets the compiler vectorise every loop.
template <class Type, class Op>
void reduce_block(typename Type::Stored* out, const void* const* in, int num_in, int64_t offset) {
  using Stored = typename Type::Stored;
  alignas(64) typename Type::Sum sum[kBlock], term[kBlock];
  Type::load(sum, static_cast<const Stored*>(in[0]) + offset);
  for (int r = 1; r < num_in; ++r) {
    Type::load(term, static_cast<const Stored*>(in[r]) + offset);
    for (int64_t i = 0; i < kBlock; ++i) sum[i] = Op::of(sum[i], term[i]);
  }
  Type::store(out, sum);
}

template <class Type, class Op>
void reduce_all(void* out_data, const void* const* in, int num_in, int64_t count) {
  using Stored = typename Type::Stored;
  auto* out = static_cast<Stored*>(out_data);
  int64_t offset = 0;
  for (; offset + kBlock <= count; offset += kBlock) reduce_block<Type, Op>(out + offset, in, num_in, offset);
  const int64_t rest = count - offset;
  if (rest == 0) return;
  // The tail runs through the same code on padded copies, so that an element's value never depends on its position.
  alignas(64) Stored result[kBlock], padded[kBlock] = {};
  alignas(64) typename Type::Sum sum[kBlock], term[kBlock];
  for (int r = 0; r < num_in; ++r) {
    std::memcpy(padded, static_cast<const Stored*>(in[r]) + offset, rest * sizeof(Stored));
    Type::load(r == 0 ? sum : term, padded);
    if (r == 0) continue;
    for (int64_t i = 0; i < rest; ++i) sum[i] = Op::of(sum[i], term[i]);
  }
  Type::store(result, sum);
  std::memcpy(out + offset, result, rest * sizeof(Stored));
}

template <class Type>
void reduce_typed(void* out, const void* const* in, int num_in, int64_t count, Reduce op) {
  switch (op) {
    case Reduce::Sum:
      return reduce_all<Type, Add>(out, in, num_in, count);
    case Reduce::Max:
      return reduce_all<Type, Larger>(out, in, num_in, count);
    case Reduce::Min:
      return reduce_all<Type, Smaller>(out, in, num_in, count);
  }
}

void reduce_any(void* out, const void* const* in, int num_in, int64_t count, at::ScalarType dtype, Reduce op) {
  switch (dtype) {
    case at::kDouble:
      return reduce_typed<Plain<double>>(out, in, num_in, count, op);
    case at::kFloat:
      return reduce_typed<Plain<float>>(out, in, num_in, count, op);
    case at::kBFloat16:
      return reduce_typed<BFloat16>(out, in, num_in, count, op);
    case at::kHalf:
      return reduce_typed<Float16>(out, in, num_in, count, op);
    case at::kLong:  // unsigned, so that sums wrap without undefined behaviour
      if (op == Reduce::Sum) return reduce_all<Plain<uint64_t>, Add>(out, in, num_in, count);
      return reduce_typed<Plain<int64_t>>(out, in, num_in, count, op);
    case at::kInt:
      if (op == Reduce::Sum) return reduce_all<Plain<uint32_t>, Add>(out, in, num_in, count);
      return reduce_typed<Plain<int32_t>>(out, in, num_in, count, op);
    case at::kByte:
      return reduce_typed<Plain<uint8_t>>(out, in, num_in, count, op);
    case at::kBool:
      if (op == Reduce::Min) return reduce_all<Plain<uint8_t>, Smaller>(out, in, num_in, count);
      return reduce_all<Plain<uint8_t>, Or>(out, in, num_in, count);
    default:
      return check_reducible(dtype);
  }
}

}  // namespace
}  // namespace colossal::comm
