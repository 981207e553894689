// Dropout of random.h: masks depend on the logical index, and backward draws them again instead of saving them.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/random.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
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

// Returns rows [from, from + count) of the mask; true = kept.
at::Tensor kept_rows(int64_t from, int64_t count, int64_t cols, const Mask& mask, at::Device device) {
  const auto words = at::TensorOptions(at::kLong).device(device);
  const LogicalRows& rows = mask.rows;
  const auto local = at::arange(from, from + count, words), run = at::floor_divide(local, rows.run);
  const auto row = (rows.first + run * rows.stride + (local - run * rows.run)).unsqueeze(1);
  const auto col = at::arange(mask.first_col, mask.first_col + cols, words).unsqueeze(0);
  return random_words_reference(row * mask.logical_cols + col, mask.seed) >= static_cast<int64_t>(mask.threshold());
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

}  // namespace

at::Tensor dropout_mask_reference(int64_t count, int64_t cols, double p, uint64_t seed, const LogicalRows& rows,
                                  int64_t first_col, int64_t logical_cols, at::Device device) {
  return kept_rows(0, count, cols, {p, seed, rows, first_col, logical_cols}, device);
}

at::Tensor dropout(const at::Tensor& x, double p, uint64_t seed, const LogicalRows& rows, int64_t first_col,
                   int64_t logical_cols) {
  require(p >= 0 && p < 1, "dropout", "probability must be in [0, 1): got ", p);
  const int64_t cols = x.dim() == 0 ? 1 : x.size(-1);
  require(rows.run >= 1 && rows.run <= rows.stride, "dropout", "runs of rows must not overlap: got runs of ", rows.run,
          ", ", rows.stride, " apart");
  require(rows.first >= 0 && first_col >= 0 && first_col + cols <= logical_cols, "dropout",
          "the shard must be inside the logical row: got first row ", rows.first, ", first column ", first_col, ", ",
          cols, " columns of ", logical_cols);
  if (p == 0) return x;
  return Dropout::apply(x, p, static_cast<int64_t>(seed), rows.first, rows.run, rows.stride, first_col, logical_cols);
}

}  // namespace colossal::ops
