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
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/kernels.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/moved_bytes.h"

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

// Converts eight words to eight values of [-bound, bound).
struct Uniform {
  float bound;
  void operator()(const uint32_t* words, float* out) const {
    for (int half = 0; half < 8; half += 4) {
      Words own;
      std::memcpy(&own, words + half, sizeof own);
      const Floats values = (unit_of(own) * 2.0f - 1.0f) * bound;
      std::memcpy(out + half, &values, sizeof values);
    }
  }
};

// Draws the values of logical indices [first, first + count), in runs of whole blocks that are cut at both ends.
template <class Draw>
void draw_run(const Draw& draw, uint64_t seed, uint64_t first, int64_t count, float* out) {
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
template <class Draw>
void fill(const Draw& draw, at::Tensor& local, std::vector<int64_t> shape, std::vector<int64_t> start,
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

void fill_uniform(at::Tensor& local, const std::vector<int64_t>& shape, const std::vector<int64_t>& start,
                  const std::vector<int64_t>& local_start, const std::vector<int64_t>& size, uint64_t seed,
                  double bound) {
  fill(Uniform{static_cast<float>(bound)}, local, shape, start, local_start, size, seed);
}

// Dropout: masks depend on the logical index, and backward draws them again instead of saving them.
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kDropoutGrain = 16384;
constexpr int64_t kDropoutRun = 1024;  // words drawn at a time
// Words drawn at a time by tensor operators, which need several int64 tensors of that length
constexpr int64_t kDropoutSlice = 1 << 20;

struct Mask {
  double p;
  uint64_t seed;
  LogicalRows rows;
  int64_t first_col, logical_cols;
  /// An element whose word is below the threshold is dropped.
  uint32_t threshold() const { return static_cast<uint32_t>(std::min(std::floor(p * 0x1p32), 0x1p32 - 1)); }
};

template <class T>
void apply_on_cpu(const Mask& mask, const T* x, T* y, int64_t rows, int64_t cols) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const uint32_t threshold = mask.threshold();
  const Wide scale = static_cast<Wide>(1.0 / (1.0 - mask.p));
  parallel_for(0, rows * cols, kDropoutGrain, [&](int64_t from, int64_t to) {
    uint32_t words[kDropoutRun];
    for (int64_t i = from; i < to;) {  // runs within a row: consecutive logical indices
      const int64_t row = i / cols, col = i % cols, count = std::min({cols - col, to - i, kDropoutRun});
      random_words(mask.seed,
                   static_cast<uint64_t>(mask.rows(row)) * static_cast<uint64_t>(mask.logical_cols) +
                       static_cast<uint64_t>(mask.first_col + col),
                   count, words);
      for (int64_t k = 0; k < count; ++k)
        y[i + k] = words[k] < threshold ? T(0) : static_cast<T>(static_cast<Wide>(x[i + k]) * scale);
      i += count;
    }
  });
}

/// Returns false if the device has no kernels of ours.
bool apply_on_device(const Mask& mask, const at::Tensor& x, const at::Tensor& y, int64_t rows, int64_t cols) {
  return with_device_kernels(x, [&](auto element, const auto& kernel, void* stream) {
    using T = decltype(element);
    const DroppedRows<T> task{cols,
                              mask.rows.first,
                              mask.rows.run,
                              mask.rows.stride,
                              mask.first_col,
                              mask.logical_cols,
                              mask.seed,
                              mask.threshold(),
                              static_cast<WideOf<T>>(1.0 / (1.0 - mask.p)),
                              pointer<T>(x),
                              pointer<T>(y)};
    kernel.dropout(task, rows, stream);
  });
}

// Returns the words [count, cols] of rows [from, from + count), by ATen's operators.
at::Tensor words_of_rows(int64_t from, int64_t count, int64_t cols, uint64_t seed, const LogicalRows& rows,
                         int64_t first_col, int64_t logical_cols, at::Device device) {
  const auto words = at::TensorOptions(at::kLong).device(device);
  const auto local = at::arange(from, from + count, words), run = at::floor_divide(local, rows.run);
  const auto row = (rows.first + run * rows.stride + (local - run * rows.run)).unsqueeze(1);
  const auto col = at::arange(first_col, first_col + cols, words).unsqueeze(0);
  return random_words_reference(row * logical_cols + col, seed);
}

// Returns rows [from, from + count) of the mask; true = kept.
at::Tensor kept_rows(int64_t from, int64_t count, int64_t cols, const Mask& mask, at::Device device) {
  return words_of_rows(from, count, cols, mask.seed, mask.rows, mask.first_col, mask.logical_cols, device) >=
         static_cast<int64_t>(mask.threshold());
}

// Works in slices of rows, because the words for a whole activation would need many times its memory.
at::Tensor apply_by_slices(const at::Tensor& x, const Mask& mask, int64_t rows, int64_t cols) {
  const at::Tensor input = x.contiguous(), in = input.view({rows, cols}), y = at::empty_like(input),
                   out = y.view({rows, cols});
  const int64_t slice = std::max<int64_t>(kDropoutSlice / std::max<int64_t>(cols, 1), 1);
  for (int64_t from = 0; from < rows; from += slice) {
    const int64_t count = std::min(slice, rows - from);
    const at::Tensor keep = kept_rows(from, count, cols, mask, x.device()).to(x.scalar_type());
    out.narrow(0, from, count).copy_(in.narrow(0, from, count) * keep * (1.0 / (1.0 - mask.p)));
  }
  return y;
}

at::Tensor apply_mask(const at::Tensor& x, const Mask& mask) {
  const int64_t cols = x.dim() == 0 ? 1 : x.size(-1), rows = cols == 0 ? 0 : x.numel() / cols;
  const tensor::KernelBytes bytes({x}, {x});  // the mask is drawn, not read
  if (x.is_meta()) return at::empty_like(x);
  const auto input = x.contiguous();
  auto y = at::empty_like(input);
  if (y.numel() == 0 || apply_on_device(mask, input, y, rows, cols)) return y;
  if (!x.is_cpu()) return apply_by_slices(x, mask, rows, cols);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    apply_on_cpu<scalar_t>(mask, input.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), rows, cols);
  });
  return y;
}

struct Dropout : Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double p, int64_t seed, int64_t first_row,
                            int64_t run, int64_t stride, int64_t first_col, int64_t logical_cols) {
    context->saved_data["p"] = p;
    context->saved_data["place"] = std::vector<int64_t>{seed, first_row, run, stride, first_col, logical_cols};
    return apply_mask(x, {p, static_cast<uint64_t>(seed), {first_row, run, stride}, first_col, logical_cols});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto place = context->saved_data["place"].toIntVector();
    const at::Tensor none;
    const LogicalRows rows{place[1], place[2], place[3]};
    const Mask mask{context->saved_data["p"].toDouble(), static_cast<uint64_t>(place[0]), rows, place[4], place[5]};
    return {apply_mask(gradients[0], mask), none, none, none, none, none, none, none};
  }
};

void check_place(const char* component, const LogicalRows& rows, int64_t cols, int64_t first_col,
                 int64_t logical_cols) {
  require(rows.run >= 1 && rows.run <= rows.stride, component, "runs of rows must not overlap: got runs of ", rows.run,
          ", ", rows.stride, " apart");
  require(rows.first >= 0 && first_col >= 0 && first_col + cols <= logical_cols, component,
          "the shard must be inside the logical row: got first row ", rows.first, ", first column ", first_col, ", ",
          cols, " columns of ", logical_cols);
}

}  // namespace

at::Tensor dropout_mask_reference(int64_t count, int64_t cols, double p, uint64_t seed, const LogicalRows& rows,
                                  int64_t first_col, int64_t logical_cols, at::Device device) {
  return kept_rows(0, count, cols, {p, seed, rows, first_col, logical_cols}, device);
}

at::Tensor dropout(const at::Tensor& x, double p, uint64_t seed, const LogicalRows& rows, int64_t first_col,
                   int64_t logical_cols) {
  require(p >= 0 && p < 1, "dropout", "probability must be in [0, 1): got ", p);
  const int64_t cols = x.dim() == 0 ? 1 : x.size(-1);
  check_place("dropout", rows, cols, first_col, logical_cols);
  if (p == 0) return x;
  return Dropout::apply(x, p, static_cast<int64_t>(seed), rows.first, rows.run, rows.stride, first_col, logical_cols);
}

at::Tensor uniform(int64_t count, int64_t cols, uint64_t seed, const LogicalRows& rows, int64_t first_col,
                   int64_t logical_cols, at::Device device) {
  check_place("uniform", rows, cols, first_col, logical_cols);
  at::Tensor values = at::empty({count, cols}, at::TensorOptions(at::kFloat).device(device));
  if (values.numel() == 0 || values.is_meta()) return values;
  if (!values.is_cpu()) {
    const int64_t slice = std::max<int64_t>(kDropoutSlice / cols, 1);
    for (int64_t from = 0; from < count; from += slice) {
      const int64_t some = std::min(slice, count - from);
      const at::Tensor words = words_of_rows(from, some, cols, seed, rows, first_col, logical_cols, device);
      values.narrow(0, from, some).copy_(at::bitwise_right_shift(words, 8) * 0x1p-23 - 1);
    }
    return values;
  }
  float* const out = values.data_ptr<float>();
  parallel_for(0, count, std::max<int64_t>(kRandomGrain / cols, 1), [&](int64_t from, int64_t to) {
    for (int64_t row = from; row < to; ++row)
      draw_run(Uniform{1}, seed, static_cast<uint64_t>(rows(row) * logical_cols + first_col), cols, out + row * cols);
  });
  return values;
}

}  // namespace colossal::ops
