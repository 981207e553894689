#include "colossal/ops/causal_convolution.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/flops.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using ClipBias = std::optional<at::Tensor>;  // because an argument of a Function must not be an undefined tensor

/// What stands around the frames of a clip.
struct Surroundings {
  int64_t front = 0, rows = 0, columns = 0;
  bool replicates = false;
  bool any() const { return front > 0 || rows > 0 || columns > 0; }
};

/// The frames of a clip within it and its surroundings, a view.
at::Tensor inside(const at::Tensor& all, const Surroundings& s) {
  return all.narrow(1, s.front, all.size(1) - s.front)
      .narrow(2, s.rows, all.size(2) - 2 * s.rows)
      .narrow(3, s.columns, all.size(3) - 2 * s.columns);
}

/// Calls body(edge, repeated) for the views of what is repeated, in the order in which edges are complete: rows, then
/// columns with those rows, then frames.
template <class Body>
void each_edge(const at::Tensor& all, const Surroundings& s, const Body& body) {
  const at::Tensor frames = all.narrow(1, s.front, all.size(1) - s.front);
  for (const auto& [dim, count] : {std::pair{int64_t{2}, s.rows}, {int64_t{3}, s.columns}}) {
    if (count == 0) continue;
    const int64_t last = all.size(dim) - count;
    body(frames.narrow(dim, count, 1), frames.narrow(dim, 0, count), dim);
    body(frames.narrow(dim, last - 1, 1), frames.narrow(dim, last, count), dim);
  }
  if (s.front > 0) body(all.narrow(1, s.front, 1), all.narrow(1, 0, s.front), 1);
}

/// A clip with what surrounds it, in one copy.
struct Surround : Function<Surround> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Surroundings& s) {
    at::Tensor all;
    {
      const tensor::HiddenOperators hidden;
      all = at::empty({x.size(0), x.size(1) + s.front, x.size(2) + 2 * s.rows, x.size(3) + 2 * s.columns, x.size(4)},
                      x.options());
      if (!s.replicates) all.zero_();
      inside(all, s).copy_(x);
      if (s.replicates)
        each_edge(all, s, [](const at::Tensor& edge, const at::Tensor& repeated, int64_t) { repeated.copy_(edge); });
    }
    if (context) context->saved_data["surroundings"] = std::vector<int64_t>{s.front, s.rows, s.columns, s.replicates};
    const tensor::KernelBytes bytes({x}, {all});
    return all;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const std::vector<int64_t> saved = context->saved_data["surroundings"].toIntVector();
    const Surroundings s{saved[0], saved[1], saved[2], saved[3] != 0};
    at::Tensor dx;
    {
      const tensor::HiddenOperators hidden;
      if (!s.replicates) {
        dx = inside(gradients[0], s).contiguous();
      } else {
        const at::Tensor all = gradients[0].clone(at::MemoryFormat::Contiguous);
        std::vector<std::function<void()>> sums;  // in the other direction
        each_edge(all, s, [&](const at::Tensor& edge, const at::Tensor& repeated, int64_t dim) {
          sums.push_back([=] { edge.add_(repeated.sum(dim, /*keepdim=*/true)); });
        });
        for (auto sum = sums.rbegin(); sum != sums.rend(); ++sum) (*sum)();
        dx = inside(all, s).contiguous();
      }
    }
    const tensor::KernelBytes bytes({gradients[0]}, {dx});
    return {dx, {}};
  }
};

at::Tensor surrounded(const at::Tensor& x, const Surroundings& s) {
  return s.any() ? tensor::apply_function<Surround>(x, s) : x;
}

/// Steps of a kernel over a clip, and the zeros that LibTorch adds to each frame.
struct ClipSteps {
  int64_t frames = 1, pixels = 1, rows = 0, columns = 0;
  std::vector<int64_t> strides() const { return {frames, pixels, pixels}; }
  std::vector<int64_t> padding() const { return {0, rows, columns}; }
};

void announce_clip_product(const at::Tensor& weight, int64_t pixels) {
  tensor::announce_product(pixels, weight.size(0), weight.numel() / std::max<int64_t>(1, weight.size(0)),
                           weight.scalar_type());
}

/// The convolution of a clip within its surroundings.
struct ClipConvolution : Function<ClipConvolution> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const ClipBias& bias, const ClipSteps& steps) {
    const at::Tensor clip = x.contiguous();
    if (context) {
      context->save_for_backward({weight.requires_grad() ? clip : at::Tensor(), weight});
      context->saved_data["sizes"] = clip.sizes().vec();
      context->saved_data["steps"] = std::vector<int64_t>{steps.frames, steps.pixels, steps.rows, steps.columns};
      context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    }
    std::vector<int64_t> sizes{clip.size(0)};
    for (int64_t d = 0; d < 3; ++d)
      sizes.push_back((clip.size(1 + d) + 2 * steps.padding()[d] - weight.size(2 + d)) / steps.strides()[d] + 1);
    sizes.push_back(weight.size(0));
    announce_clip_product(weight, sizes[0] * sizes[1] * sizes[2] * sizes[3]);
    const tensor::HiddenOperators hidden;
    if (clip.is_meta()) return at::empty(sizes, clip.options());
    return at::convolution(clip.permute({0, 4, 1, 2, 3}), weight, bias, steps.strides(), steps.padding(), {1, 1, 1},
                           /*transposed=*/false, {0, 0, 0}, 1)
        .permute({0, 2, 3, 4, 1})
        .contiguous();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<int64_t> s = context->saved_data["steps"].toIntVector(),
                               sizes = context->saved_data["sizes"].toIntVector();
    const ClipSteps steps{s[0], s[1], s[2], s[3]};
    const at::Tensor& weight = saved[1];
    const at::Tensor dy = gradients[0].contiguous();
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    at::Tensor dx, dweight, dbias;
    if (context->saved_data["bias"].toBool()) dbias = column_sums(dy.view({-1, dy.size(4)}));
    if (!wants_x && !wants_weight) return {dx, dweight, dbias, {}};
    for (int products = wants_x + wants_weight; products > 0; --products)
      announce_clip_product(weight, dy.numel() / std::max<int64_t>(1, dy.size(4)));
    const tensor::HiddenOperators hidden;
    if (dy.is_meta()) {
      if (wants_x) dx = at::empty(sizes, dy.options());
      if (wants_weight) dweight = at::empty(weight.sizes(), weight.options());
      return {dx, dweight, dbias, {}};
    }
    const at::Tensor x = saved[0].defined() ? saved[0] : at::empty(sizes, dy.options());
    std::tie(dx, dweight, std::ignore) = at::convolution_backward(
        dy.permute({0, 4, 1, 2, 3}), x.permute({0, 4, 1, 2, 3}), weight, std::nullopt, steps.strides(), steps.padding(),
        {1, 1, 1}, /*transposed=*/false, {0, 0, 0}, 1, {wants_x, wants_weight, false});
    if (wants_x) dx = dx.permute({0, 2, 3, 4, 1}).contiguous();
    if (wants_weight) dweight = dweight.contiguous();
    return {dx, dweight, dbias, {}};
  }
};

}  // namespace

std::array<int64_t, 5> causal_sizes(at::IntArrayRef x, at::IntArrayRef weight, const CausalWindow& window,
                                    int64_t front) {
  require(x.size() == 5 && weight.size() == 5 && weight[1] == x[4], "convolution",
          "the input must be [B, frames, height, width, channels] and the weight [out, channels, frames, rows, "
          "columns]: got ",
          x, " and ", weight);
  require(window.frame_stride > 0 && window.stride > 0, "convolution", "the strides must be 1 or more: got ",
          window.frame_stride, " and ", window.stride);
  require(weight[3] % 2 == 1 && weight[4] % 2 == 1, "convolution",
          "a causal kernel must have an odd number of rows and of columns: got ", weight[3], " x ", weight[4]);
  require(front >= 0 && x[1] + front >= weight[2], "convolution", "a kernel of ", weight[2],
          " frames must fit into the frames and those before them: got ", x[1], " and ", front);
  const auto side = [&](int64_t size) { return size > 0 ? (size - 1) / window.stride + 1 : 0; };
  return {x[0], (x[1] + front - weight[2]) / window.frame_stride + 1, side(x[2]), side(x[3]), weight[0]};
}

at::Tensor causal_convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                              const CausalWindow& window, const at::Tensor& before) {
  const at::Tensor frames = before.defined() ? at::cat({before, x}, 1) : x;
  const int64_t front = before.defined() ? 0 : window.front >= 0 ? window.front : weight.size(2) - 1;
  causal_sizes(frames.sizes(), weight.sizes(), window, front);
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "convolution",
          "the bias must have an element for each of ", weight.size(0), " outputs: got ",
          bias.defined() ? bias.sizes() : at::IntArrayRef());
  const int64_t rows = weight.size(3) / 2, columns = weight.size(4) / 2;
  const bool repeats = window.replicates;
  const Surroundings around{front, repeats ? rows : 0, repeats ? columns : 0, repeats};
  const ClipSteps steps{window.frame_stride, window.stride, repeats ? 0 : rows, repeats ? 0 : columns};
  return tensor::apply_function<ClipConvolution>(surrounded(frames, around), weight,
                                                 bias.defined() ? ClipBias(bias) : std::nullopt, steps);
}

}  // namespace colossal::ops
