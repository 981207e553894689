// Parts of the bodies of all products with panels: loads, the split of a block of rows into parts whose sums fit the
// registers, and the write of results. Included by the kernels of each instruction set.
#pragma once
#include "colossal/ops/products/prepacked_kernels.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int kOutputs = static_cast<int>(kPanelOutputs);
/// Rows of a block of tables that compute with vectors.
constexpr int kBlockRows = static_cast<int>(RowLayout{}.rows);
constexpr int kPanelVectors = kOutputs / kLanes<float>;
/// Number of accumulators that fit the registers: 24 of 32, or 12 of 16.
constexpr int kMaxSums = kVectorBytes == 64 ? 24 : 12;
/// The same for bodies with more temporaries. With 12 of 16 the compiler would keep some accumulators in memory.
constexpr int kFewerSums = kVectorBytes == 64 ? 24 : 8;

typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef uint8_t PanelBytes __attribute__((vector_size(kVectorBytes)));

/// Sums of a block in the computing type, row after row.
struct alignas(64) PanelSums {
  float of[kBlockRows][kOutputs];
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

// Returns a * b + c, rounded once if the instruction set can. The compiler may fuse a product with a sum in one part
// and not in another, and then a row's bits would depend on how many rows there are.
inline Vec<float> multiply_add(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline void clear(PanelSums& sums, int64_t rows) { __builtin_memset(sums.of, 0, rows * sizeof sums.of[0]); }

// Number of a panel's vectors that are computed at a time with `Rows` rows, if `Sums` sums fit the registers.
template <int Sums, int Rows>
constexpr int vectors_with() {
  const int room = Sums / Rows;
  return room >= kPanelVectors ? kPanelVectors : room >= 2 ? 2 : 1;
}

// Calls part(first row, Rows, first vector, vectors) over a block of rows, in parts of at most `Sums` sums.
template <int Sums, class Part>
inline __attribute__((always_inline)) void for_parts(int64_t rows, const Part& part) {
  int64_t row = 0;
  const auto take = [&](auto count) __attribute__((always_inline)) {
    constexpr int kRows = decltype(count)::value;
    constexpr int kVectors = vectors_with<Sums, kRows>();
    for (; row + kRows <= rows; row += kRows)
      for (int first = 0; first < kPanelVectors; first += kVectors)
        part(row, count, first, std::integral_constant<int, kVectors>());
  };
  if constexpr (Sums == 24) take(std::integral_constant<int, 12>());
  if constexpr (Sums == 24) take(std::integral_constant<int, 8>());
  if constexpr (Sums == 12) take(std::integral_constant<int, 6>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

// Returns how many inputs all parts of a block of rows read before the first part reads on: all if there is one part.
// Otherwise the inputs' share of panel and rows stays in L1, where all parts but the first find it. It is so small that
// the processor loads the next share while it computes with this one. `unit` divides the number of inputs.
template <int Sums>
inline int64_t inputs_at_a_time(int64_t inputs, int64_t rows, int64_t unit) {
  constexpr int64_t kInputs = 64;
  const bool one_part = rows <= Sums / kPanelVectors && (rows == kBlockRows || (rows & (rows - 1)) == 0);
  return one_part ? inputs : (kInputs + unit - 1) / unit * unit;
}

// Adds the bias to the sums and writes them to y.
template <class Sums>
inline void write_panel(const PanelProduct& p, int64_t rows, Sums& sums) {
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

}  // namespace
}  // namespace colossal::ops
