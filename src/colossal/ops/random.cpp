#include "colossal/ops/random.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "colossal/base/error.h"
#include "colossal/ops/kernels.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr int64_t kRandomGrain = 16384;
constexpr int64_t kRandomRun = 1024;  // words drawn at a time

// Words are converted to floats in vectors of the baseline instruction set. It has no fused multiply-add, so values do
// not depend on the machine. The words themselves are integers and come from the widest vectors.
typedef uint32_t Words __attribute__((vector_size(16)));
typedef int32_t Integers __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));

Floats root_of(Floats x) {
#if defined(__SSE2__)
  return (Floats)_mm_sqrt_ps((__m128)x);
#else
  for (int i = 0; i < 4; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

// Natural logarithm of x in (0, 1] by 2 atanh((m-1)/(m+1)), m in [sqrt(1/2), sqrt(2)): + - * / only. Within 2 ulp.
Floats log_of(Floats x) {
  const Words bits = (Words)x, mantissa = (bits & 0x007FFFFFu) | 0x3F800000u;
  const Words upper = (Words)((Floats)mantissa > 1.41421356f);  // all ones or zero
  const Floats m = (Floats)(mantissa - (upper & 0x00800000u));
  const Integers exponent = (Integers)((bits >> 23) - 127u - upper);
  const Floats s = (m - 1.0f) / (m + 1.0f), z = s * s;
  const Floats series = ((z * (1.0f / 9) + (1.0f / 7)) * z + (1.0f / 5)) * z + (1.0f / 3);
  return __builtin_convertvector(exponent, Floats) * 0.693147181f + 2.0f * (s + s * z * series);
}

Floats unit_of(Words word) {  // [0, 1) in steps of 2^-24; the conversion of a signed number is one instruction
  return __builtin_convertvector((Integers)(word >> 8), Floats) * 0x1p-24f;
}

// Two standard normal variates of two random words (Box and Muller). The word of the angle gives the quadrant by its
// two upper bits and an angle in [-pi/4, pi/4) by the rest, where short Taylor series are exact to fp32.
void normal_pair(Words radius_word, Words angle_word, Floats& first, Floats& second) {
  const Floats radius = root_of(-2.0f * log_of(unit_of(radius_word) + 0x1p-24f));
  const Floats a = __builtin_convertvector((Integers)(angle_word << 2) >> 8, Floats) * (0x1p-24f * 1.57079633f);
  const Floats z = a * a;
  const Floats sine = a * (1.0f + z * (-1.0f / 6 + z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880)))));
  const Floats cosine = 1.0f + z * (-0.5f + z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320))));
  const auto odd = (angle_word & 0x40000000u) != 0;
  const Floats sign = (angle_word & 0x80000000u) != 0 ? -radius : radius;
  first = sign * (odd ? -sine : cosine);
  second = sign * (odd ? cosine : sine);
}

// Converts eight words to eight values. The words of a block are used in pairs: even words for radii, odd ones for
// angles.
struct Normal {
  float deviation;
  void operator()(const uint32_t* words, float* out) const {
    Words lower, upper;
    std::memcpy(&lower, words, sizeof lower);
    std::memcpy(&upper, words + 4, sizeof upper);
    const Words even{0, 2, 4, 6}, odd{1, 3, 5, 7}, first_half{0, 4, 1, 5}, second_half{2, 6, 3, 7};
    Floats first, second;
    normal_pair(__builtin_shuffle(lower, upper, even), __builtin_shuffle(lower, upper, odd), first, second);
    const Floats left = __builtin_shuffle(first, second, first_half) * deviation;
    const Floats right = __builtin_shuffle(first, second, second_half) * deviation;
    std::memcpy(out, &left, sizeof left);
    std::memcpy(out + 4, &right, sizeof right);
  }
};

// Draws the values of logical indices [first, first + count), in runs of whole blocks that are cut at both ends.
void draw_run(const Normal& draw, uint64_t seed, uint64_t first, int64_t count, float* out) {
  uint32_t words[kRandomRun];
  float values[kRandomRun];
  for (int64_t done = 0; done < count;) {
    const uint64_t index = first + static_cast<uint64_t>(done), start = index / 8 * 8;
    const int64_t offset = static_cast<int64_t>(index - start), take = std::min(kRandomRun - offset, count - done);
    const int64_t drawn = (offset + take + 7) / 8 * 8;
    random_words(seed, start, drawn, words);
    for (int64_t i = 0; i < drawn; i += 8) draw(words + i, values + i);
    std::memcpy(out + done, values + offset, static_cast<size_t>(take) * sizeof(float));
    done += take;
  }
}

void check_box(const at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
               const std::vector<int64_t>& local_start, const std::vector<int64_t>& size) {
  const auto dims = static_cast<size_t>(local.dim());
  require(shape.size() == dims && start.size() == dims && local_start.size() == dims && size.size() == dims, "random",
          "shape, start, local_start and size must have one entry per dimension of the tensor: got ", shape.size(),
          ", ", start.size(), ", ", local_start.size(), ", ", size.size(), " for ", dims);
  for (size_t d = 0; d < dims; ++d) {
    require(start[d] >= 0 && size[d] >= 0 && start[d] + size[d] <= shape[d], "random",
            "the box must be inside the logical shape: dimension ", d, " has start ", start[d], ", size ", size[d],
            ", logical size ", shape[d]);
    require(local_start[d] >= 0 && local_start[d] + size[d] <= local.size(static_cast<int64_t>(d)), "random",
            "the box must be inside the local tensor: dimension ", d, " has start ", local_start[d], ", size ", size[d],
            ", local size ", local.size(static_cast<int64_t>(d)));
  }
}

// A box is a set of rows along its last dimension, each a run of consecutive logical indices.
void fill(const Normal& draw, at::Tensor& local, std::vector<int64_t> shape, std::vector<int64_t> start,
          std::vector<int64_t> local_start, std::vector<int64_t> size, uint64_t seed) {
  check_box(local, shape, start, local_start, size);
  at::NoGradGuard no_grad;
  at::Tensor box = local;
  for (size_t d = 0; d < size.size(); ++d) box = box.narrow(static_cast<int64_t>(d), local_start[d], size[d]);
  if (box.numel() == 0 || box.is_meta()) return;
  if (size.empty()) shape = start = size = {1}, start[0] = 0;
  const bool in_place = box.is_cpu() && box.scalar_type() == at::kFloat && box.is_contiguous();
  at::Tensor drawn = in_place ? box : at::empty(box.sizes(), at::kFloat);
  float* out = drawn.data_ptr<float>();
  const int64_t columns = size.back(), rows = box.numel() / columns;
  const auto first_of_row = [&](int64_t row) {
    uint64_t index = static_cast<uint64_t>(start.back()), stride = static_cast<uint64_t>(shape.back());
    for (size_t d = size.size() - 1; d-- > 0; row /= size[d], stride *= static_cast<uint64_t>(shape[d]))
      index += stride * static_cast<uint64_t>(start[d] + row % size[d]);
    return index;
  };
  parallel_for(0, rows * columns, kRandomGrain, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to;) {
      const int64_t row = i / columns, column = i % columns, count = std::min(columns - column, to - i);
      draw_run(draw, seed, first_of_row(row) + static_cast<uint64_t>(column), count, out + i);
      i += count;
    }
  });
  if (!in_place) box.copy_(drawn);
}

}  // namespace

std::array<uint32_t, 4> philox(uint64_t counter, uint64_t seed) {
  std::array<uint32_t, 4> block;
  random_words(seed, counter * 4, 4, block.data());
  return block;
}

void random_words(uint64_t seed, uint64_t first, int64_t count, uint32_t* out) {
  kernels<float>().random_words(seed, first, count, out);
}

at::Tensor random_words_reference(const at::Tensor& index, uint64_t seed) {
  const at::Tensor block = index.bitwise_right_shift(2);
  // 32-bit words live in the lower half of int64: products wrap modulo 2^64, an arithmetic shift and a mask give their
  // halves.
  constexpr int64_t kLow = 0xFFFFFFFF;
  const auto low = [&](const at::Tensor& word) { return word.bitwise_and(kLow); };
  const auto high = [&](const at::Tensor& word) { return low(word.bitwise_right_shift(32)); };
  at::Tensor c0 = low(block), c1 = high(block), c2 = at::zeros_like(block), c3 = c2;
  int64_t k0 = static_cast<int64_t>(seed & kLow), k1 = static_cast<int64_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const auto p0 = c0 * int64_t{0xD2511F53}, p1 = c2 * int64_t{0xCD9E8D57};
    c0 = high(p1).bitwise_xor(c1).bitwise_xor(k0);
    c1 = low(p1);
    c2 = high(p0).bitwise_xor(c3).bitwise_xor(k1);
    c3 = low(p0);
    k0 = (k0 + 0x9E3779B9) & kLow;
    k1 = (k1 + 0xBB67AE85) & kLow;
  }
  const auto lane = index.bitwise_and(3);
  return at::where(lane == 0, c0, at::where(lane == 1, c1, at::where(lane == 2, c2, c3)));
}

void fill_normal(at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
                 const std::vector<int64_t>& local_start, const std::vector<int64_t>& size, uint64_t seed,
                 double deviation) {
  fill(Normal{static_cast<float>(deviation)}, local, shape, start, local_start, size, seed);
}

}  // namespace colossal::ops
