#include "colossal/ops/random.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <bit>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;
constexpr int64_t kGrain = 16384;

// Natural logarithm of x in (0, 1] by 2 atanh((m-1)/(m+1)), m in [sqrt(1/2), sqrt(2)): only + - * /, so the same everywhere
// (this unit is compiled without FMA). Within 2 ulp of the exact value.
float log_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  int exponent = static_cast<int>(bits >> 23) - 127;
  float m = std::bit_cast<float>((bits & 0x007FFFFFu) | 0x3F800000u);
  if (m > 1.41421356f) {
    m *= 0.5f;
    ++exponent;
  }
  const float s = (m - 1.0f) / (m + 1.0f), z = s * s;
  const float series = ((z * (1.0f / 9) + (1.0f / 7)) * z + (1.0f / 5)) * z + (1.0f / 3);
  return static_cast<float>(exponent) * 0.693147181f + 2.0f * (s + s * z * series);
}

// Two standard normal variates of two random words (Box and Muller). The word of the angle gives the quadrant by its two
// upper bits and an angle in [-pi/4, pi/4) by the rest, where short Taylor series are exact to fp32.
void normal_pair(uint32_t radius_word, uint32_t angle_word, float* out) {
  const float u = static_cast<float>((radius_word >> 8) + 1) * 0x1p-24f;
  const float radius = std::sqrt(-2.0f * log_of(u));
  const float a = static_cast<float>(static_cast<int32_t>(angle_word << 2) >> 8) * (0x1p-24f * 1.57079633f);
  const float z = a * a;
  const float sine = a * (1 + z * (-1.0f / 6 + z * (1.0f / 120 + z * (-1.0f / 5040 + z * (1.0f / 362880)))));
  const float cosine = 1 + z * (-0.5f + z * (1.0f / 24 + z * (-1.0f / 720 + z * (1.0f / 40320))));
  const uint32_t quadrant = angle_word >> 30;
  const float x = quadrant & 1 ? -sine : cosine, y = quadrant & 1 ? cosine : sine;
  const float sign = quadrant & 2 ? -radius : radius;
  out[0] = sign * x;
  out[1] = sign * y;
}

struct Normal {
  float deviation;
  void operator()(const std::array<uint32_t, 4>& words, float* out) const {
    normal_pair(words[0], words[1], out);
    normal_pair(words[2], words[3], out + 2);
    for (int i = 0; i < 4; ++i) out[i] *= deviation;
  }
};

struct Uniform {
  float low, range;
  void operator()(const std::array<uint32_t, 4>& words, float* out) const {
    for (int i = 0; i < 4; ++i) out[i] = low + range * (static_cast<float>(words[i] >> 8) * 0x1p-24f);
  }
};

// Values of logical indices [first, first + count): whole blocks of four, cut at both ends.
template <class Draw>
void draw_run(const Draw& draw, uint64_t seed, uint64_t first, int64_t count, float* out) {
  float block[4];
  for (int64_t done = 0; done < count;) {
    const uint64_t index = first + static_cast<uint64_t>(done);
    const int64_t lane = static_cast<int64_t>(index % 4), take = std::min<int64_t>(4 - lane, count - done);
    draw(philox(index / 4, seed), block);
    for (int64_t i = 0; i < take; ++i) out[done + i] = block[lane + i];
    done += take;
  }
}

void check_box(const at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
               const std::vector<int64_t>& local_start, const std::vector<int64_t>& size) {
  const auto dims = static_cast<size_t>(local.dim());
  require(shape.size() == dims && start.size() == dims && local_start.size() == dims && size.size() == dims, "random",
          "shape, start, local_start and size must have one entry per dimension of the tensor: got ", shape.size(), ", ",
          start.size(), ", ", local_start.size(), ", ", size.size(), " for ", dims);
  for (size_t d = 0; d < dims; ++d) {
    require(start[d] >= 0 && size[d] >= 0 && start[d] + size[d] <= shape[d], "random",
            "the box must lie inside the logical shape: dimension ", d, " has start ", start[d], ", size ", size[d],
            ", logical size ", shape[d]);
    require(local_start[d] >= 0 && local_start[d] + size[d] <= local.size(static_cast<int64_t>(d)), "random",
            "the box must lie inside the local tensor: dimension ", d, " has start ", local_start[d], ", size ", size[d],
            ", local size ", local.size(static_cast<int64_t>(d)));
  }
}

// A box is a set of rows along its last dimension, each a run of consecutive logical indices.
template <class Draw>
void fill(const Draw& draw, at::Tensor& local, std::vector<int64_t> shape, std::vector<int64_t> start,
          std::vector<int64_t> local_start, std::vector<int64_t> size, uint64_t seed) {
  check_box(local, shape, start, local_start, size);
  at::NoGradGuard no_grad;
  at::Tensor box = local;
  for (size_t d = 0; d < size.size(); ++d) box = box.narrow(static_cast<int64_t>(d), local_start[d], size[d]);
  if (box.numel() == 0) return;
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
  parallel_for(0, rows * columns, kGrain, [&](int64_t from, int64_t to) {
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
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < kRounds; ++round, k0 += kWeyl0, k1 += kWeyl1) {
    const uint64_t p0 = uint64_t{kMultiplier0} * c0, p1 = uint64_t{kMultiplier1} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
  }
  return {c0, c1, c2, c3};
}

void fill_normal(at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
                 const std::vector<int64_t>& local_start, const std::vector<int64_t>& size, uint64_t seed, double deviation) {
  fill(Normal{static_cast<float>(deviation)}, local, shape, start, local_start, size, seed);
}

void fill_uniform(at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
                  const std::vector<int64_t>& local_start, const std::vector<int64_t>& size, uint64_t seed, double low,
                  double high) {
  fill(Uniform{static_cast<float>(low), static_cast<float>(high - low)}, local, shape, start, local_start, size, seed);
}

}  // namespace colossal::ops
