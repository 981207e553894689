#include "colossal/nn/low_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::nn {
namespace {

constexpr std::string_view kMatrixA = ".adapter_a", kMatrixB = ".adapter_b", kOfWeight = ".weight";

/// The two matrices of one layer, as this rank holds them.
struct Matrices {
  Parameter &a, &b;
  double scale;

  std::vector<Parameter*> behind(std::vector<Parameter*> parameters) const {
    parameters.push_back(&a);
    parameters.push_back(&b);
    return parameters;
  }
  /// Returns the rows of B that belong to outputs; stored pieces may have padding rows at the end.
  at::Tensor outputs(int64_t out) const { return b.value.detach().narrow(0, 0, std::min(out, b.value.size(0))); }
  at::Tensor inputs() const { return a.value.detach(); }
  /// Pads the gradient of the first rows of B to all of its rows.
  at::Tensor whole(const at::Tensor& gradient) const {
    const int64_t padding = b.value.size(0) - gradient.size(0);
    return padding == 0 ? gradient : at::constant_pad_nd(gradient, {0, 0, 0, padding});
  }
};

class DirectLowRank final : public DirectWrapper {
 public:
  DirectLowRank(std::shared_ptr<const DirectProduct> inner, Matrices matrices)
      : DirectWrapper(std::move(inner)), m_(matrices) {}

  std::vector<Parameter*> parameters() const override { return m_.behind(inner().parameters()); }

  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    at::Tensor y = inner().local_y(x, weight, bias, out, saved);
    // dA and dB are computed from x itself, so a product inside need not keep x in another form as well.
    if (saved && saved->takes_given_x) saved->x = x;
    return y.add_(ops::matmul_nt(ops::matmul_nt(x, m_.inputs()), m_.outputs(out)), m_.scale);
  }
  at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const override {
    at::Tensor dx = inner().local_dx(dy, saved);
    return dx.add_(ops::matmul_nn(ops::matmul_nn(dy, m_.outputs(saved.out)), m_.inputs()), m_.scale);
  }
  void local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted, Gradients& d) const override {
    inner().local_gradients(dy, saved, wanted, d);
    if (!wanted.own) return;
    const at::Tensor narrow_dy = ops::matmul_nn(dy, m_.outputs(saved.out)),
                     narrow_x = ops::matmul_nt(saved.x, m_.inputs());
    d.own.push_back(ops::matmul_tn(narrow_dy, saved.x).mul_(m_.scale));
    d.own.push_back(m_.whole(ops::matmul_tn(dy, narrow_x).mul_(m_.scale)));
  }

 private:
  Matrices m_;
};

class GatheredLowRank final : public Product {
 public:
  GatheredLowRank(std::shared_ptr<const Product> inner, Matrices matrices) : inner_(std::move(inner)), m_(matrices) {}

  std::vector<Parameter*> parameters() const override { return m_.behind(inner_->parameters()); }
  bool has_backward() const override { return inner_->has_backward(); }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    const at::Tensor sum = sum_with(weight);
    const at::Tensor y = inner_->forward(x, sum, bias, out, saved);
    if (!saved) return y;
    // W is kept anyway, so backward computes the sum again, unless the product kept another tensor, such as a gathered
    // one.
    const bool kept_sum = saved->weight.is_same(sum);
    saved->own.push_back(kept_sum ? weight : at::Tensor());
    if (kept_sum) saved->weight.reset();
    return y;
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    Saved given = saved;
    const at::Tensor weight = given.own.back();
    given.own.pop_back();
    if (weight.defined() && wanted.x) given.weight = sum_with(weight);
    Gradients d = inner_->backward(dy, given, {wanted.x, wanted.weight || wanted.own, {}, wanted.own});
    if (wanted.own) {
      d.own.push_back(ops::matmul_tn(m_.b.value.detach(), d.weight).mul_(m_.scale));
      d.own.push_back(ops::matmul_nt(d.weight, m_.inputs()).mul_(m_.scale));
    }
    d.weight = wanted.weight ? wanted.with(d.weight) : at::Tensor();
    return d;
  }

 private:
  at::Tensor sum_with(const at::Tensor& weight) const {
    return ops::matmul_nn(m_.b.value.detach(), m_.inputs()).mul_(m_.scale).add_(weight.detach());
  }

  std::shared_ptr<const Product> inner_;
  Matrices m_;
};

void add_axes(std::vector<std::string>& axes, const std::vector<std::string>& more) {
  for (const std::string& axis : more)
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
}

/// Returns the spec of a matrix of `shape` whose dimension `dim` is sharded like that dimension of W. Ranks that hold
/// other parts of the other side each contribute a part of its gradient.
tensor::ShardSpec spec_like(const tensor::ShardSpec& weight, std::vector<int64_t> shape, size_t dim) {
  auto spec = tensor::ShardSpec::whole(std::move(shape));
  spec.splits[dim] = weight.splits[dim];
  spec.gradient_axes = weight.gradient_axes;
  const tensor::DimSplit& other = weight.splits[1 - dim];
  add_axes(spec.gradient_axes, other.axes);
  add_axes(spec.gradient_axes, other.shards);
  return spec;
}

}  // namespace

std::shared_ptr<const Product> with_low_rank(std::shared_ptr<const Product> product, const Parameter& weight,
                                             Parameters& parameters, const LowRank& options) {
  require(weight.hidden_matrix, "adapter", weight.name,
          " must be a matrix inside a block: the loss of a head multiplies with its weight alone; return `product` "
          "unless weight.hidden_matrix");
  require(!weight.stack, "adapter", weight.name,
          " must not be an expert of a mixture, which adapters do not reach; return `product` if weight.stack is set");
  require(weight.spec.shape.size() == 2, "adapter", weight.name, " must be a matrix: got ", weight.spec.shape.size(),
          " dimensions");
  const int64_t out = weight.spec.shape[0], in = weight.spec.shape[1];
  require(options.rank >= 1 && options.rank <= std::min(out, in), "adapter", "the rank of an adapter of ", weight.name,
          " must be between 1 and ", std::min(out, in), ", its smaller side: got ", options.rank);
  const std::string layer =
      weight.name.ends_with(kOfWeight) ? weight.name.substr(0, weight.name.size() - kOfWeight.size()) : weight.name;
  Parameter& a = parameters.add(layer + std::string(kMatrixA), spec_like(weight.spec, {options.rank, in}, 1),
                                Init::normal(1 / std::sqrt(static_cast<double>(in))), true);
  Parameter& b = parameters.add(layer + std::string(kMatrixB), spec_like(weight.spec, {out, options.rank}, 0),
                                Init::zeros(), true);
  a.hidden_matrix = b.hidden_matrix = true;
  a.is_shared = b.is_shared = weight.is_shared;
  if (!weight.value.defined()) return product;
  const Matrices matrices{a, b, options.scale};
  if (auto direct = std::dynamic_pointer_cast<const DirectProduct>(product))
    return std::make_shared<DirectLowRank>(std::move(direct), matrices);
  return std::make_shared<GatheredLowRank>(std::move(product), matrices);
}

bool is_low_rank(std::string_view parameter) { return parameter.ends_with(kMatrixA) || parameter.ends_with(kMatrixB); }

}  // namespace colossal::nn
