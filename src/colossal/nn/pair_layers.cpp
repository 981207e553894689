#include "colossal/nn/pair_layers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/layers.h"
#include "colossal/nn/open_gate.h"
#include "colossal/ops/activation.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::nn {
namespace {

/// Parts of z in which inference makes the edges that it does not keep: more save memory and cost time.
constexpr int64_t kPairParts = 24;

at::Tensor masked(const at::Tensor& x, const at::Tensor& mask) {
  return mask.defined() ? x * mask.to(x.scalar_type()).unsqueeze(-1) : x;
}

at::Tensor part_of(const at::Tensor& mask, int64_t dim, int64_t first, int64_t count) {
  return mask.defined() ? mask.narrow(dim, first, count) : mask;
}

}  // namespace

TriangleMultiplication::TriangleMultiplication(Layers& make, const std::string& name, int64_t features,
                                               const TriangleOptions& options)
    : options_(options) {
  const auto pair = [&](const std::string& edge, int64_t out) -> Edges {
    return {normed_layer(make, name + ".linear_" + edge + "_p", features, out, options.bias),
            open_gate(make, name + ".linear_" + edge + "_g", features, out, options.bias)};
  };
  norm_in_ = make.layer_norm(name + ".layer_norm_in", features, {});
  if (options.fused)
    both_ = pair("ab", 2 * options.hidden);
  else
    a_ = pair("a", options.hidden), b_ = pair("b", options.hidden);
  norm_out_ = make.layer_norm(name + ".layer_norm_out", options.hidden, {});
  out_ = silent_layer(make, name + ".linear_z", options.hidden, features, options.bias);
  gate_ = open_gate(make, name + ".linear_g", features, features, options.bias);
}

at::Tensor TriangleMultiplication::edge(const Edges& of, const at::Tensor& x, const at::Tensor& mask) const {
  return masked(ops::sigmoid_gate(of.gate->forward(x), of.projection->forward(x)), mask);
}

at::Tensor TriangleMultiplication::edges(int which, const at::Tensor& x, const at::Tensor& mask) const {
  if (options_.fused) return edge(both_, x, mask).narrow(-1, which * options_.hidden, options_.hidden);
  return edge(which == 0 ? a_ : b_, x, mask);
}

at::Tensor TriangleMultiplication::finish(const at::Tensor& products, const at::Tensor& x) const {
  return ops::sigmoid_gate(gate_->forward(x), out_->forward(norm_out_->forward(products)));
}

at::Tensor TriangleMultiplication::forward(const at::Tensor& z, const at::Tensor& mask) const {
  const at::Tensor x = norm_in_->forward(z);
  if (!options_.fused) return finish(ops::triangle_product(edges(0, x, mask), edges(1, x, mask), options_.triangle), x);
  const std::vector<at::Tensor> both = edge(both_, x, mask).chunk(2, -1);
  return finish(ops::triangle_product(both[0], both[1], options_.triangle), x);
}

void TriangleMultiplication::add_to(at::Tensor& z, const at::Tensor& mask) const {
  require(!at::GradMode::is_enabled(), "triangle",
          "in-place multiplication must run without gradients: got gradients enabled; call forward(), or use "
          "at::NoGradGuard");
  if (tensor::operator_recorder()) {  // who runs the recorded operators decides on parts
    z.add_(forward(z, mask));
    return;
  }
  const bool outgoing = options_.triangle == ops::Triangle::Outgoing;
  const int64_t dim = outgoing ? 1 : 2, size = z.size(dim),
                step = std::max<int64_t>((size + kPairParts - 1) / kPairParts, 1);
  const auto each_part = [&](const auto& body) {
    for (int64_t first = 0; first < size; first += step) {
      const int64_t count = std::min(step, size - first);
      const at::Tensor part = z.narrow(dim, first, count);
      body(first, count, part, norm_in_->forward(part.contiguous()), part_of(mask, dim, first, count));
    }
  };
  // The edges of which every product needs all: b_jk, or a_ki.
  const at::Tensor whole = at::empty({z.size(0), z.size(1), z.size(2), options_.hidden}, z.options());
  each_part([&](int64_t first, int64_t count, const at::Tensor&, const at::Tensor& x, const at::Tensor& own) {
    whole.narrow(dim, first, count).copy_(edges(outgoing ? 1 : 0, x, own));
  });
  each_part([&](int64_t, int64_t, const at::Tensor& part, const at::Tensor& x, const at::Tensor& own) {
    const at::Tensor some = edges(outgoing ? 0 : 1, x, own);
    part.add_(finish(outgoing ? ops::triangle_product(some, whole, options_.triangle)
                              : ops::triangle_product(whole, some, options_.triangle),
                     x));
  });
}

TriangleAttention::TriangleAttention(Layers& make, const std::string& name, int64_t features, const GatedHeads& heads,
                                     bool starting)
    : starting_(starting),
      norm_(make.layer_norm(name + ".layer_norm", features, {})),
      bias_(normed_layer(make, name + ".linear", features, heads.heads, false)),
      attention_(make, name + ".mha", features, heads) {}

at::Tensor TriangleAttention::forward(const at::Tensor& z, const at::Tensor& mask) const {
  const at::Tensor x = norm_->forward(z), bias = bias_->forward(x);
  // [B, heads, queries, keys]: of the edge from query to key, or for "ending" of the edge from key to query.
  return attention_.forward(
      x, starting_ ? AttendedAxis::Second : AttendedAxis::First,
      {.bias = starting_ ? bias.permute({0, 3, 1, 2}) : bias.permute({0, 3, 2, 1}), .mask = mask});
}

Transition::Transition(Layers& make, const std::string& name, int64_t features, int64_t factor)
    : norm_(make.layer_norm(name + ".layer_norm", features, {})),
      up_(normed_layer(make, name + ".linear_1", features, factor * features, true)),
      down_(silent_layer(make, name + ".linear_2", factor * features, features, true)) {}

at::Tensor Transition::forward(const at::Tensor& x, const at::Tensor& mask) const {
  const at::Tensor inside = up_->forward(norm_->forward(x));
  if (!at::GradMode::is_enabled()) return masked(down_->forward(inside.clamp_min_(0)), mask);  // saves a tensor
  static const ops::Activation& relu = ops::activation("relu");
  return masked(down_->forward(relu.plain(inside)), mask);
}

}  // namespace colossal::nn
