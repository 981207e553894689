#include "colossal/nn/low_rank_experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/ops/products/grouped_matmul.h"
#include "colossal/ops/products/prepacked_matrix.h"

namespace colossal::nn {
namespace {

/// The matrices of the adapters of a stack: A [E, r, in] and B [E, out, r].
struct ExpertMatrices {
  Parameter &a, &b;
  double scale;
};

/// y(e) + s (x(e) A(e)t) B(e)t around the product of a stack.
class GroupedLowRank final : public GroupedProduct {
 public:
  GroupedLowRank(std::shared_ptr<const GroupedProduct> inner, const ExpertMatrices& matrices)
      : inner_(std::move(inner)), m_(matrices) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const ops::GroupEnds& ends,
                     Saved* saved) const override {
    const at::Tensor y = inner_->forward(x, weight, bias, ends, saved);
    // dA and dB are computed from x itself, also if a product inside keeps x in another form.
    if (saved) saved->x = x;
    if (inner_->multiplies_by_row(saved != nullptr)) {
      const at::Tensor narrow = product_by_row(x, a(), ends).mul_(m_.scale);
      return at::Tensor(y).add_(product_by_row(narrow, b(), ends));
    }
    return at::Tensor(y).add_(ops::grouped_nt(narrowed(x, ends), b(), ends));
  }
  at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends) const override {
    const at::Tensor dx = inner_->input_gradient(dy, saved, ends);
    return at::Tensor(dx).add_(ops::grouped_nn(narrowed_gradient(dy, ends), a(), ends));
  }
  at::Tensor weight_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends,
                             at::Tensor sum) const override {
    return inner_->weight_gradient(dy, saved, ends, std::move(sum));
  }
  std::vector<Parameter*> parameters() const override {
    std::vector<Parameter*> all = inner_->parameters();
    all.insert(all.end(), {&m_.a, &m_.b});
    return all;
  }
  std::vector<at::Tensor> own_gradients(const at::Tensor& dy, const Saved& saved,
                                        const ops::GroupEnds& ends) const override {
    std::vector<at::Tensor> all = inner_->own_gradients(dy, saved, ends);
    all.push_back(ops::grouped_tn(narrowed_gradient(dy, ends), saved.x, ends));
    all.push_back(ops::grouped_tn(dy, narrowed(saved.x, ends), ends));
    return all;
  }

 private:
  at::Tensor a() const { return m_.a.value.detach(); }
  at::Tensor b() const { return m_.b.value.detach(); }
  /// Returns s x(e) A(e)t: [R, r].
  at::Tensor narrowed(const at::Tensor& x, const ops::GroupEnds& ends) const {
    return ops::grouped_nt(x, a(), ends).mul_(m_.scale);
  }
  /// Returns x(e) M(e)t, each row by itself.
  static at::Tensor product_by_row(const at::Tensor& x, const at::Tensor& stack, const ops::GroupEnds& ends) {
    at::Tensor y = at::empty({x.size(0), stack.size(1)}, x.options().requires_grad(false));
    int64_t first = 0;
    for (size_t e = 0; e < ends.size(); first = ends[e++])
      if (ends[e] > first)
        y.narrow(0, first, ends[e] - first)
            .copy_(ops::PrepackedMatrix::product(x.narrow(0, first, ends[e] - first), stack[static_cast<int64_t>(e)]));
    return y;
  }
  /// Returns s dy(e) B(e): [R, r].
  at::Tensor narrowed_gradient(const at::Tensor& dy, const ops::GroupEnds& ends) const {
    return ops::grouped_nn(dy, b(), ends).mul_(m_.scale);
  }

  std::shared_ptr<const GroupedProduct> inner_;
  ExpertMatrices m_;
};

/// One expert of an adapted stack.
class ExpertLowRank final : public ExpertWrapper {
 public:
  ExpertLowRank(std::shared_ptr<const Product> inner, const ExpertMatrices& matrices)
      : inner_(std::move(inner)), m_(matrices) {}
  const std::shared_ptr<const Product>& inside() const override { return inner_; }
  std::shared_ptr<const GroupedProduct> around(std::shared_ptr<const GroupedProduct> product) const override {
    return std::make_shared<GroupedLowRank>(std::move(product), m_);
  }
  std::vector<Parameter*> parameters() const override { return {&m_.a, &m_.b}; }
  bool has_backward() const override { return inner_->has_backward(); }

 private:
  std::shared_ptr<const Product> inner_;
  ExpertMatrices m_;
};

void check_expert_options(const Parameter& stack, const LowRank& options) {
  require(stack.hidden_matrix && stack.spec.shape.size() == 3, "adapter", stack.name,
          " must be a stack of matrices [E, out, in] to have adapters: got ", stack.spec.shape.size(), " dimensions");
  require(options.dropout == 0, "adapter", "adapters of experts must have no dropout, as in peft: got ",
          options.dropout, " for ", stack.name, "; set adapter.dropout = 0, or adapter.targets without experts");
  require(!options.magnitudes, "adapter", "adapters of experts must have no magnitudes, as in peft: got some for ",
          stack.name, "; set adapter.kind = \"lora\", or adapter.targets without experts");
  require(options.parts.empty(), "adapter", "the adapter of an expert must have all of its outputs: got parts of ",
          stack.name, "; leave LowRank::parts empty");
  const int64_t most = std::min(stack.spec.shape[1], stack.spec.shape[2]);
  require(options.rank >= 1 && options.rank <= most, "adapter", "the rank of an adapter of ", stack.name,
          " must be between 1 and ", most, ", its smaller side: got ", options.rank);
}

/// Declares both stacks. Ranks that split the outputs have parts of the sums of dA, and ranks that split the inputs
/// parts of those of dB.
void declare_matrices(const Parameter& stack, Parameters& parameters, int64_t rank) {
  const std::vector<int64_t>& shape = stack.spec.shape;
  const std::vector<tensor::DimSplit>& splits = stack.spec.splits;
  auto of_a = tensor::ShardSpec::whole({shape[0], rank, shape[2]});
  auto of_b = tensor::ShardSpec::whole({shape[0], shape[1], rank});
  of_a.splits[0] = of_b.splits[0] = splits[0];
  of_a.splits[2] = splits[2];
  of_b.splits[1] = splits[1];
  of_a.gradient_axes = of_b.gradient_axes = stack.spec.gradient_axes;
  add_axes(of_a.gradient_axes, splits[1].axes);
  add_axes(of_b.gradient_axes, splits[2].axes);
  const auto add = [&](char matrix, tensor::ShardSpec spec, Init init) {
    Parameter& added = parameters.add(low_rank_name_of(stack, matrix, ""), std::move(spec), init, /*decay=*/true);
    added.hidden_matrix = added.is_stack = true;
    added.is_shared = stack.is_shared;
  };
  add('a', std::move(of_a), Init::uniform(1 / std::sqrt(static_cast<double>(shape[2]))));
  add('b', std::move(of_b), Init::zeros());
}

}  // namespace

std::shared_ptr<const Product> with_low_rank_of_expert(std::shared_ptr<const Product> product, const Parameter& weight,
                                                       Parameters& parameters, const LowRank& options) {
  const Parameter& stack = *weight.stack;
  check_expert_options(stack, options);
  const tensor::MeshCoordinates& coordinates = parameters.coordinates();
  const int64_t first = stack.spec.room(0, coordinates) * coordinates.index(stack.spec.splits[0].axes);
  if (first + weight.stack_index == 0) declare_matrices(stack, parameters, options.rank);
  if (!stack.value.defined()) return product;
  const ExpertMatrices matrices{parameters.at(low_rank_name_of(stack, 'a', "")),
                                parameters.at(low_rank_name_of(stack, 'b', "")), options.scale};
  return std::make_shared<ExpertLowRank>(std::move(product), matrices);
}

std::string low_rank_name_of(const Parameter& weight, char matrix, const std::string& part) {
  constexpr std::string_view kOfWeight = ".weight";
  std::string layer = weight.name;
  if (layer.ends_with(kOfWeight)) layer.resize(layer.size() - kOfWeight.size());
  return LowRankName{layer, matrix, part}.text();
}

void add_axes(std::vector<std::string>& axes, const std::vector<std::string>& more) {
  for (const std::string& axis : more)
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) axes.push_back(axis);
}

}  // namespace colossal::nn
