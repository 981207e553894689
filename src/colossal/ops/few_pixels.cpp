#include "colossal/ops/few_pixels.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <type_traits>

#include "colossal/ops/parallel.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::ops {
namespace {

/// Elements of a weight for each pixel of a result, from which on the product is faster. Measured in fp32 and bf16.
constexpr int64_t kElementsOfPixel = int64_t{1} << 15;

/// Where the taps of the pixels of a result lie in x [B, h, w, channels].
struct Columns {
  Columns(at::IntArrayRef x, const at::Tensor& weight, const Window& window)
      : batch(x[0]),
        channels(x[3]),
        from{x[1], x[2]},
        kernel{weight.size(2), weight.size(3)},
        to(window.of(from, kernel)),
        window(window) {}

  int64_t rows() const { return batch * to.pixels(); }
  int64_t inputs() const { return channels * kernel.pixels(); }

  /// Calls body(tap, pixel of x) for the taps of row `row` that lie inside its picture.
  template <class Body>
  void each_tap(int64_t row, const Body& body) const {
    const int64_t picture = row / to.pixels(), place = row % to.pixels();
    const int64_t top = place / to.width * window.stride - window.top,
                  left = place % to.width * window.stride - window.left;
    for (int64_t k = std::max<int64_t>(0, -top); k < std::min(kernel.height, from.height - top); ++k)
      for (int64_t l = std::max<int64_t>(0, -left); l < std::min(kernel.width, from.width - left); ++l)
        body(k * kernel.width + l, (picture * from.height + top + k) * from.width + left + l);
  }

  int64_t batch, channels;
  PictureSize from, kernel, to;
  Window window;
};

/// Returns [B h' w', in kh kw], in the order of a weight's elements.
at::Tensor columns_of(const at::Tensor& given, const Columns& c) {
  const at::Tensor x = given.contiguous();
  at::Tensor columns = at::zeros({c.rows(), c.inputs()}, x.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "columns_of", [&] {
    const auto* in = x.const_data_ptr<scalar_t>();
    auto* out = columns.mutable_data_ptr<scalar_t>();
    const int64_t taps = c.kernel.pixels();
    parallel_for(0, c.rows(), 1, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        c.each_tap(row, [&](int64_t tap, int64_t pixel) {
          const scalar_t* from = in + pixel * c.channels;
          scalar_t* to = out + row * c.inputs() + tap;
          for (int64_t i = 0; i < c.channels; ++i) to[i * taps] = from[i];
        });
    });
  });
  return columns;
}

/// Adds columns where their pixels lie: the transpose of columns_of(). The sums are in fp32 at least.
at::Tensor pixels_of(const at::Tensor& columns, const Columns& c) {
  const at::ScalarType wide = at::promote_types(columns.scalar_type(), at::kFloat);
  at::Tensor x = at::zeros({c.batch, c.from.height, c.from.width, c.channels}, columns.options().dtype(wide));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, columns.scalar_type(), "pixels_of", [&] {
    using Sum = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
    const auto* in = columns.const_data_ptr<scalar_t>();
    auto* out = x.mutable_data_ptr<Sum>();
    const int64_t taps = c.kernel.pixels();
    // Threads divide the channels, because taps of several rows lie at one pixel.
    parallel_for(0, c.channels, 64, [&](int64_t first, int64_t last) {
      for (int64_t row = 0; row < c.rows(); ++row)
        c.each_tap(row, [&](int64_t tap, int64_t pixel) {
          const scalar_t* from = in + row * c.inputs() + tap;
          Sum* to = out + pixel * c.channels;
          for (int64_t i = first; i < last; ++i) to[i] += static_cast<Sum>(from[i * taps]);
        });
    });
  });
  return x.to(columns.scalar_type());
}

at::Tensor pixel_rows(const at::Tensor& pictures) { return pictures.reshape({-1, pictures.size(3)}); }

}  // namespace

bool are_few_pixels(const at::Tensor& weight, const PictureSize& result) {
  return weight.is_cpu() && weight.numel() >= kElementsOfPixel * result.pixels();
}

at::Tensor convolution_of_few_pixels(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                     const Window& window) {
  const Columns c(x.sizes(), weight, window);
  return matmul_nt(columns_of(x, c), weight.flatten(1), bias).view({c.batch, c.to.height, c.to.width, weight.size(0)});
}

at::Tensor pixel_gradient(const at::Tensor& dy, at::IntArrayRef sizes, const at::Tensor& weight, const Window& window) {
  return pixels_of(matmul_nn(pixel_rows(dy), weight.flatten(1)), Columns(sizes, weight, window));
}

at::Tensor weight_gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const Window& window) {
  return matmul_tn(pixel_rows(dy), columns_of(x, Columns(x.sizes(), weight, window))).view(weight.sizes());
}

}  // namespace colossal::ops
