#include "colossal/ops/convolution.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/few_pixels.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using OptionalBias = std::optional<at::Tensor>;  // because an argument of a Function must not be an undefined tensor

PictureSize picture_size(const at::Tensor& x) { return {x.size(1), x.size(2)}; }
PictureSize kernel_size(const at::Tensor& weight) { return {weight.size(2), weight.size(3)}; }

bool is_even(const Window& w) { return w.top == w.bottom && w.left == w.right; }

at::Tensor with_zeros(const at::Tensor& x, const Window& w) {
  if (w.top == 0 && w.bottom == 0 && w.left == 0 && w.right == 0) return x;
  return at::constant_pad_nd(x, {0, 0, w.left, w.right, w.top, w.bottom});
}

/// Returns x in LibTorch's order of dimensions, [B, C, h, w], with the zeros that LibTorch's convolution cannot add
/// itself. Its memory stays channels last, for which LibTorch and oneDNN have kernels: nothing is copied.
at::Tensor as_channels_first(const at::Tensor& x, const Window& w) {
  return (is_even(w) ? x : with_zeros(x, w)).contiguous().permute({0, 3, 1, 2});
}

std::vector<int64_t> padding_of(const Window& w) {
  return is_even(w) ? std::vector<int64_t>{w.top, w.left} : std::vector<int64_t>{0, 0};
}

void check_picture(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  require(x.dim() == 4 && weight.dim() == 4 && weight.size(1) == x.size(3), "convolution",
          "the input must be [B, height, width, channels] and the weight [out, channels, rows, columns]: got ",
          x.sizes(), " and ", weight.sizes());
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "convolution",
          "the bias must have an element for each of ", weight.size(0), " outputs: got ",
          bias.defined() ? bias.sizes() : at::IntArrayRef());
}

void announce_convolution(const at::Tensor& weight, int64_t pixels) {
  tensor::announce_product(pixels, weight.size(0), weight.size(1) * weight.size(2) * weight.size(3),
                           weight.scalar_type());
}

struct Convolution : Function<Convolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const OptionalBias& bias, const Window& window) {
    const at::Tensor picture = x.contiguous();
    if (context) {
      // The gradient of x needs the weight and the sizes of x alone.
      context->save_for_backward({weight.requires_grad() ? picture : at::Tensor(), weight});
      context->saved_data["sizes"] = picture.sizes().vec();
      context->saved_data["window"] =
          std::vector<int64_t>{window.stride, window.top, window.bottom, window.left, window.right};
      context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    }
    return convolution_forward(picture, weight, bias.value_or(at::Tensor()), window);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<int64_t> w = context->saved_data["window"].toIntVector(),
                               sizes = context->saved_data["sizes"].toIntVector();
    const at::Tensor x = saved[0].defined() ? saved[0] : at::empty(sizes, gradients[0].options());
    const auto [dx, dweight, dbias] = convolution_backward(
        gradients[0], x, saved[1], {w[0], w[1], w[2], w[3], w[4]},
        {context->needs_input_grad(0), context->needs_input_grad(1), context->saved_data["bias"].toBool()});
    return {dx, dweight, dbias, {}};
  }
};

/// LibTorch's operators, announced as one: its backward announces nothing but the zeros with which it begins.
struct Enlarge : Function<Enlarge> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const PictureSize& size) {
    at::Tensor y;
    {
      const tensor::HiddenOperators hidden;
      y = at::upsample_nearest2d(x.contiguous().permute({0, 3, 1, 2}), {size.height, size.width})
              .permute({0, 2, 3, 1})
              .contiguous();
    }
    if (context) context->saved_data["sizes"] = x.sizes().vec();
    const tensor::KernelBytes bytes({x}, {y});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::vector<int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx;
    {
      const tensor::HiddenOperators hidden;
      dx = at::upsample_nearest2d_backward(dy.permute({0, 3, 1, 2}), {dy.size(1), dy.size(2)},
                                           {sizes[0], sizes[3], sizes[1], sizes[2]})
               .permute({0, 2, 3, 1})
               .contiguous();
    }
    const tensor::KernelBytes bytes({dy}, {dx});
    return {dx, {}};
  }
};

}  // namespace

PictureSize Window::of(const PictureSize& picture, const PictureSize& kernel) const {
  require(stride > 0, "convolution", "the stride must be 1 or more: got ", stride);
  const int64_t rows = picture.height + top + bottom - kernel.height,
                columns = picture.width + left + right - kernel.width;
  require(rows >= 0 && columns >= 0, "convolution", "a kernel of ", kernel.height, " x ", kernel.width,
          " must fit into the picture and its padding: got ", picture.height, " x ", picture.width);
  return {rows / stride + 1, columns / stride + 1};
}

at::Tensor convolution_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                               const Window& window) {
  check_picture(x, weight, bias);
  const PictureSize size = window.of(picture_size(x), kernel_size(weight));
  announce_convolution(weight, x.size(0) * size.pixels());
  const tensor::HiddenOperators hidden;
  if (x.is_meta()) return at::empty({x.size(0), size.height, size.width, weight.size(0)}, x.options());
  if (are_few_pixels(weight, size)) return convolution_of_few_pixels(x, weight, bias, window);
  const at::Tensor picture = as_channels_first(x, window);
  const at::Tensor y =
      at::convolution(picture, weight, bias.defined() ? std::optional(bias) : std::nullopt,
                      {window.stride, window.stride}, padding_of(window), {1, 1}, /*transposed=*/false, {0, 0}, 1);
  return y.permute({0, 2, 3, 1}).contiguous();
}

std::array<at::Tensor, 3> convolution_backward(const at::Tensor& gradient, const at::Tensor& x,
                                               const at::Tensor& weight, const Window& window,
                                               std::array<bool, 3> wanted) {
  const auto [wants_x, wants_weight, wants_bias] = wanted;
  const at::Tensor dy = gradient.contiguous();
  at::Tensor dx, dweight, dbias;
  if (wants_bias) dbias = column_sums(dy.view({-1, dy.size(3)}));
  if (!wants_x && !wants_weight) return {dx, dweight, dbias};
  for (int products = wants_x + wants_weight; products > 0; --products)
    announce_convolution(weight, dy.size(0) * dy.size(1) * dy.size(2));
  const tensor::HiddenOperators hidden;
  if (x.is_meta()) {
    if (wants_x) dx = at::empty(x.sizes(), x.options());
    if (wants_weight) dweight = at::empty(weight.sizes(), weight.options());
    return {dx, dweight, dbias};
  }
  if (are_few_pixels(weight, {dy.size(1), dy.size(2)})) {
    if (wants_x) dx = pixel_gradient(dy, x.sizes(), weight, window);
    if (wants_weight) dweight = weight_gradient(dy, x, weight, window);
    return {dx, dweight, dbias};
  }
  const at::Tensor picture = as_channels_first(x, window);
  std::tie(dx, dweight, std::ignore) = at::convolution_backward(
      dy.permute({0, 3, 1, 2}), picture, weight, std::nullopt, {window.stride, window.stride}, padding_of(window),
      {1, 1}, /*transposed=*/false, {0, 0}, 1, {wants_x, wants_weight, false});
  if (wants_x) dx = dx.permute({0, 2, 3, 1});
  if (wants_weight) dweight = dweight.contiguous();
  if (wants_x && !is_even(window)) dx = dx.narrow(1, window.top, x.size(1)).narrow(2, window.left, x.size(2));
  return {wants_x ? dx.contiguous() : dx, dweight, dbias};
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const Window& window) {
  check_picture(x, weight, bias);
  return tensor::apply_function<Convolution>(x, weight, bias.defined() ? OptionalBias(bias) : std::nullopt, window);
}

at::Tensor shifted(const at::Tensor& x, const PictureSize& kernel, int64_t row, int64_t column, const Window& window) {
  const PictureSize size = window.of(picture_size(x), kernel);
  // What the padding of a side adds; a tap that begins inside the picture narrows it instead.
  const int64_t above = row - window.top, left = column - window.left;
  const int64_t below = above + (size.height - 1) * window.stride + 1 - x.size(1),
                right = left + (size.width - 1) * window.stride + 1 - x.size(2);
  const at::Tensor moved = at::constant_pad_nd(x, {0, 0, -left, right, -above, below});
  return window.stride == 1 ? moved : moved.slice(1, 0, {}, window.stride).slice(2, 0, {}, window.stride);
}

at::Tensor unfolded(const at::Tensor& x, const PictureSize& kernel, const Window& window) {
  const PictureSize size = window.of(picture_size(x), kernel);
  const at::Tensor whole = with_zeros(x, window);
  std::vector<at::Tensor> taps;  // views, which cat() copies once
  for (int64_t row = 0; row < kernel.height; ++row)
    for (int64_t column = 0; column < kernel.width; ++column)
      taps.push_back(whole.slice(1, row, row + (size.height - 1) * window.stride + 1, window.stride)
                         .slice(2, column, column + (size.width - 1) * window.stride + 1, window.stride));
  return at::cat(taps, 3);
}

at::Tensor enlarged(const at::Tensor& x, const PictureSize& size) {
  require(x.dim() == 4, "convolution", "a picture to enlarge must be [B, height, width, channels]: got ", x.sizes());
  return tensor::apply_function<Enlarge>(x, size);
}

}  // namespace colossal::ops
