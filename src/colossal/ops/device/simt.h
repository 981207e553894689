// GPU implementation of the vocabulary of ops/lanes.h: a block of threads executes a body. Each thread takes four
// neighbouring elements at a time, so that even 16-bit elements are moved in eight bytes. The block strides over a
// range. Under nvcc the functions of the block are CUDA's. Other includers must declare them before, as
// tests/support/emulated_block.h does; that tests this code on machines without a GPU:
//   kWarp, block_thread(), block_threads(), block_barrier(), of_neighbour(value, distance), block_scratch<W>()
#pragma once
#include <math.h>

#include <cstdint>

#include "colossal/ops/kernels.h"

#if defined(__CUDACC__)
#define COLOSSAL_DEVICE __device__
#else
#define COLOSSAL_DEVICE
#endif

namespace colossal::ops {
namespace {

#if defined(__CUDACC__)
constexpr int kWarp = 32;  // threads that execute in lockstep
COLOSSAL_DEVICE inline int block_thread() { return static_cast<int>(threadIdx.x); }
COLOSSAL_DEVICE inline int block_threads() { return static_cast<int>(blockDim.x); }
/// Waits until all threads of the block are here and their writes are visible.
COLOSSAL_DEVICE inline void block_barrier() { __syncthreads(); }
/// Returns the `value` of thread number (own ^ distance) of the warp.
template <class W>
COLOSSAL_DEVICE inline W of_neighbour(W value, int distance) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, distance);
}
/// Returns memory that the whole block shares, one element per warp.
template <class W>
COLOSSAL_DEVICE inline W* block_scratch() {
  __shared__ W numbers[32];
  return numbers;
}
#endif

/// Launch parameters of a kernel.
struct Blocks {
  void* stream;
  int64_t count;
  int threads = 0;  ///< exact number of threads per block; 0 = the launcher chooses
};

template <class W>
constexpr int kLanes = 4;
/// Lowest finite number.
template <class W>
constexpr W kLowest = -3.40282347e38f;
template <>
constexpr double kLowest<double> = -1.7976931348623157e308;

/// Four elements that one thread holds. A single number converts to four copies of it.
template <class E>
struct Pack {
  static constexpr int kSize = 4;
  E lane[kSize];

  Pack() = default;
  COLOSSAL_DEVICE Pack(E all) {
    for (E& one : lane) one = all;
  }
  COLOSSAL_DEVICE E& operator[](int64_t i) { return lane[i]; }
  COLOSSAL_DEVICE const E& operator[](int64_t i) const { return lane[i]; }

  template <class Result, class Join>
  COLOSSAL_DEVICE static Result joined(const Pack& a, const Pack& b, Join join) {
    Result result;
    for (int i = 0; i < kSize; ++i) result.lane[i] = join(a.lane[i], b.lane[i]);
    return result;
  }
  COLOSSAL_DEVICE friend Pack operator+(const Pack& a, const Pack& b) {
    return joined<Pack>(a, b, [](E x, E y) { return x + y; });
  }
  COLOSSAL_DEVICE friend Pack operator-(const Pack& a, const Pack& b) {
    return joined<Pack>(a, b, [](E x, E y) { return x - y; });
  }
  COLOSSAL_DEVICE friend Pack operator*(const Pack& a, const Pack& b) {
    return joined<Pack>(a, b, [](E x, E y) { return x * y; });
  }
  COLOSSAL_DEVICE friend Pack operator/(const Pack& a, const Pack& b) {
    return joined<Pack>(a, b, [](E x, E y) { return x / y; });
  }
  COLOSSAL_DEVICE friend Pack<bool> operator<(const Pack& a, const Pack& b) {
    return joined<Pack<bool>>(a, b, [](E x, E y) { return x < y; });
  }
  COLOSSAL_DEVICE friend Pack<bool> operator>(const Pack& a, const Pack& b) { return b < a; }
  COLOSSAL_DEVICE friend Pack operator>>(const Pack& a, int bits) {
    return joined<Pack>(a, a, [bits](E x, E) { return x >> bits; });
  }
  COLOSSAL_DEVICE Pack operator-() const {
    return joined<Pack>(*this, *this, [](E x, E) { return -x; });
  }
  COLOSSAL_DEVICE Pack& operator+=(const Pack& other) { return *this = *this + other; }
};

/// Vector of the computing type W: float or double.
template <class W>
using Vec = Pack<W>;
using Words = Pack<uint32_t>;

template <class W>
COLOSSAL_DEVICE Vec<W> splat(W value) {
  return value;
}
template <class V>
COLOSSAL_DEVICE V select(const Pack<bool>& where, const V& a, const V& b) {
  V result;
  for (int i = 0; i < V::kSize; ++i) result.lane[i] = where.lane[i] ? a.lane[i] : b.lane[i];
  return result;
}

/// Part of a loop: a whole vector, or the `count` elements of its tail.
struct Whole {};
struct Tail {
  int64_t count;
};

// --- memory ---

COLOSSAL_DEVICE inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
COLOSSAL_DEVICE inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

COLOSSAL_DEVICE inline float widened(float x) { return x; }
COLOSSAL_DEVICE inline double widened(double x) { return x; }
COLOSSAL_DEVICE inline float widened(Bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }
COLOSSAL_DEVICE inline float widened(Half x) {
  float wide;
#if defined(__CUDACC__)
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
#else
  _Float16 half;
  __builtin_memcpy(&half, &x, sizeof half);
  wide = static_cast<float>(half);
#endif
  return wide;
}

COLOSSAL_DEVICE inline void narrow(float from, float& to) { to = from; }
COLOSSAL_DEVICE inline void narrow(double from, double& to) { to = from; }
// Rounds to nearest even; NaN stays NaN.
COLOSSAL_DEVICE inline void narrow(float from, Bf16& to) {
  const uint32_t bits = bits_of(from), rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded);
}
COLOSSAL_DEVICE inline void narrow(float from, Half& to) {
#if defined(__CUDACC__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(from));
#else
  const _Float16 half = static_cast<_Float16>(from);
  __builtin_memcpy(&to, &half, sizeof half);
#endif
}

/// Four elements that are neighbours in memory; one or two instructions move them.
template <class T>
struct [[gnu::may_alias]] alignas(sizeof(T) >= 4 ? 16 : 8) Neighbours {
  T of[4];
};
template <class T>
COLOSSAL_DEVICE bool are_aligned(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Neighbours<T>) == 0;
}

template <class T>
COLOSSAL_DEVICE Vec<WideOf<T>> load(const T* p, Whole) {
  Neighbours<T> read;
  if (are_aligned(p))
    read = *reinterpret_cast<const Neighbours<T>*>(p);
  else
    for (int i = 0; i < 4; ++i) read.of[i] = p[i];
  Vec<WideOf<T>> v;
  for (int i = 0; i < 4; ++i) v[i] = widened(read.of[i]);
  return v;
}
template <class T>
COLOSSAL_DEVICE Vec<WideOf<T>> load(const T* p, Tail tail) {
  Vec<WideOf<T>> v(0);
  for (int i = 0; i < 4; ++i)
    if (i < tail.count) v[i] = widened(p[i]);
  return v;
}
template <class T>
COLOSSAL_DEVICE void store(T* p, const Vec<WideOf<T>>& v, Whole) {
  Neighbours<T> written;
  for (int i = 0; i < 4; ++i) narrow(v[i], written.of[i]);
  if (are_aligned(p))
    *reinterpret_cast<Neighbours<T>*>(p) = written;
  else
    for (int i = 0; i < 4; ++i) p[i] = written.of[i];
}
template <class T>
COLOSSAL_DEVICE void store(T* p, const Vec<WideOf<T>>& v, Tail tail) {
  for (int i = 0; i < 4; ++i)
    if (i < tail.count) narrow(v[i], p[i]);
}

// --- random numbers ---

/// Computes Philox4x32-10, see ops/random.h: the same words as the CPU kernel.
COLOSSAL_DEVICE inline Words philox_block(uint64_t counter, uint64_t seed) {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t first = uint64_t{0xD2511F53u} * c0, second = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(second);
    c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(first);
  }
  Words block;
  block[0] = c0, block[1] = c1, block[2] = c2, block[3] = c3;
  return block;
}
/// Draws the words of the elements from i on. Words past a tail are unspecified.
template <class Part>
COLOSSAL_DEVICE Words load_words(const RandomWords& words, int64_t i, Part) {
  const uint64_t index = words.first + static_cast<uint64_t>(i);
  const int offset = static_cast<int>(index % 4);
  const Words block = philox_block(index / 4, words.seed);
  if (offset == 0) return block;
  const Words next = philox_block(index / 4 + 1, words.seed);
  Words shifted;
  for (int lane = 0; lane < 4; ++lane)  // compares indices, because registers cannot be indexed at run time
    for (int from = lane + 1; from < lane + 4; ++from)
      if (from == lane + offset) shifted[lane] = from < 4 ? block[from] : next[from - 4];
  return shifted;
}
/// Rounds stochastically by the lower half of a random word: up with the probability that makes the mean exact. NaN
/// stays NaN.
COLOSSAL_DEVICE inline Vec<float> rounded_by_chance(Vec<float> v, const Words& word) {
  for (int i = 0; i < 4; ++i) {
    const uint32_t bits = bits_of(v[i]);
    if ((bits & 0x7FFFFFFFu) <= 0x7F800000u) v[i] = float_of((bits + (word[i] & 0xFFFFu)) & 0xFFFF0000u);
  }
  return v;
}

// --- the block ---

/// Calls body(i, Whole or Tail) for this thread's vectors of [0, n).
template <class W, class Body>
COLOSSAL_DEVICE void for_vectors(int64_t n, Body&& body) {
  for (int64_t i = kLanes<W> * block_thread(); i < n; i += kLanes<W> * block_threads()) {
    if (i + kLanes<W> <= n)
      body(i, Whole{});
    else
      body(i, Tail{n - i});
  }
}
template <class W, int N, class Body>
COLOSSAL_DEVICE void for_chains(int64_t n, Body&& body) {
  // One chain is enough, because many threads hide the latency
  for_vectors<W>(n, [&](int64_t i, auto part) { body(i, 0, part); });
}
/// Calls of_row(row)(i, part) for the vectors of all rows of n elements. Short rows share the block.
template <class W, class OfRow>
COLOSSAL_DEVICE void for_vectors_of_rows(int64_t begin, int64_t end, int64_t n, OfRow&& of_row) {
  const int64_t by_row = (n + kLanes<W> - 1) / kLanes<W>;
  int64_t row = begin, vector = block_thread();
  while (true) {
    for (; vector >= by_row && row < end; vector -= by_row) ++row;
    if (row >= end) return;
    const int64_t i = vector * kLanes<W>;
    if (i + kLanes<W> <= n)
      of_row(row)(i, Whole{});
    else
      of_row(row)(i, Tail{n - i});
    vector += block_threads();
  }
}

template <class W>
COLOSSAL_DEVICE Vec<W> only(const Vec<W>& v, Whole, W) {
  return v;
}
template <class W>
COLOSSAL_DEVICE Vec<W> only(Vec<W> v, Tail tail, W filler) {
  for (int i = 0; i < kLanes<W>; ++i)
    if (i >= tail.count) v[i] = filler;
  return v;
}

template <class Body>
COLOSSAL_DEVICE void once(const Body& body) {
  if (block_thread() == 0) body();
}
COLOSSAL_DEVICE inline void together() { block_barrier(); }

/// Reduces the values of all threads of the block by `join`. All threads get the same result.
template <class W, class Join>
COLOSSAL_DEVICE W over_block(W value, const Join& join) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value = join(value, of_neighbour(value, distance));
  W* of_warps = block_scratch<W>();
  block_barrier();  // other threads may still read the result of the last reduction
  if (block_thread() % kWarp == 0) of_warps[block_thread() / kWarp] = value;
  block_barrier();
  value = of_warps[0];
  for (int warp = 1; warp < block_threads() / kWarp; ++warp) value = join(value, of_warps[warp]);
  return value;
}
template <class W>
COLOSSAL_DEVICE W sum_of(const Vec<W>& v) {
  return over_block((v[0] + v[1]) + (v[2] + v[3]), [](W a, W b) { return a + b; });
}
template <class W>
COLOSSAL_DEVICE W max_of(const Vec<W>& v) {
  const auto larger = [](W a, W b) { return a > b ? a : b; };
  return over_block(larger(larger(v[0], v[1]), larger(v[2], v[3])), larger);
}

// --- functions ---

COLOSSAL_DEVICE inline float exponential(float x) { return expf(x); }
COLOSSAL_DEVICE inline double exponential(double x) { return exp(x); }
COLOSSAL_DEVICE inline float root(float x) { return sqrtf(x); }
COLOSSAL_DEVICE inline double root(double x) { return sqrt(x); }

template <class W>
COLOSSAL_DEVICE Vec<W> exp_of(Vec<W> x) {
  for (W& one : x.lane) one = exponential(one);
  return x;
}
/// Returns 1 / (1 + e^-x).
template <class W>
COLOSSAL_DEVICE Vec<W> sigmoid(const Vec<W>& x) {
  return Vec<W>(1) / (Vec<W>(1) + exp_of<W>(-x));
}
template <class W>
COLOSSAL_DEVICE Vec<W> root_of(Vec<W> x) {
  for (W& one : x.lane) one = root(one);
  return x;
}

}  // namespace
}  // namespace colossal::ops
