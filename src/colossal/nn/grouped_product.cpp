#include "colossal/nn/grouped_product.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/nn/packed_weights.h"

namespace colossal::nn {
namespace {

/// Calls body(e, first, rows) for each group that has rows.
template <class Body>
void for_groups(const ops::GroupEnds& ends, const Body& body) {
  int64_t first = 0;
  for (size_t e = 0; e < ends.size(); first = ends[e++])
    if (ends[e] > first) body(static_cast<int64_t>(e), first, ends[e] - first);
}

/// The ExpertWrappers of one expert, the outermost first, and the product inside of them.
struct Unwrapped {
  explicit Unwrapped(std::shared_ptr<const Product> product) : inside(std::move(product)) {
    while (auto wrapper = std::dynamic_pointer_cast<const ExpertWrapper>(inside)) {
      inside = wrapper->inside();
      wrappers.push_back(std::move(wrapper));
    }
  }
  std::vector<std::shared_ptr<const ExpertWrapper>> wrappers;
  std::shared_ptr<const Product> inside;
};

/// One product for each expert, group after group.
class ExpertProducts final : public GroupedProduct {
 public:
  /// `out`, `in`: sizes of a matrix on this rank. The stack may have others, because it may be codes.
  ExpertProducts(std::vector<std::shared_ptr<const Product>> products, int64_t out, int64_t in)
      : products_(std::move(products)), out_(out), in_(in) {
    for (const auto& product : products_) packed_.push_back(dynamic_cast<const PackedWeight*>(product.get()));
  }

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const ops::GroupEnds& ends,
                     Saved* saved) const override {
    if (!bias.defined())
      if (const auto panels = panels_of(ends, saved != nullptr); !panels.empty()) {
        // Backward multiplies with the values, which these products would have kept.
        if (saved) {
          *saved = {x, weight, std::vector<Product::Saved>(ends.size())};
          for (Product::Saved& kept : saved->of_expert) kept.out = weight.size(1);
        }
        return ops::PrepackedMatrix::multiply_groups(panels, x, ends);
      }
    if (saved) *saved = {{}, weight, std::vector<Product::Saved>(ends.size())};
    at::Tensor y = at::empty({x.size(0), out_}, x.options());
    for_groups(ends, [&](int64_t e, int64_t first, int64_t rows) {
      const at::Tensor own = weight[e], given = x.narrow(0, first, rows);
      Product::Saved* kept = saved ? &saved->of_expert[e] : nullptr;
      y.narrow(0, first, rows).copy_(products_[e]->forward(given, own, bias.defined() ? bias[e] : bias, out_, kept));
      // A slice would keep all rows alive, also if the caller makes them again for backward.
      if (kept && kept->x.is_same(given)) {
        kept->x = at::Tensor();
        saved->x = x;
      }
      // A chunk store may move the stack before backward, so a slice of it is taken again there.
      if (kept && kept->weight.is_same(own)) kept->weight = at::Tensor();
    });
    return y;
  }
  bool multiplies_by_row(bool has_gradients) const override {
    return std::all_of(products_.begin(), products_.end(), [&](const auto& product) {
      const auto* direct = dynamic_cast<const DirectProduct*>(product.get());
      return direct && direct->multiplies_by_row(has_gradients);
    });
  }
  at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends) const override {
    at::Tensor dx = at::empty({dy.size(0), in_}, dy.options());
    for_groups(ends, [&](int64_t e, int64_t first, int64_t rows) {
      const auto d = products_[e]->backward(dy.narrow(0, first, rows), of_expert(saved, e), {.weight = false});
      dx.narrow(0, first, rows).copy_(d.x);
    });
    return dx;
  }
  at::Tensor weight_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends,
                             at::Tensor sum) const override {
    // No operator reads the stack here: under ZeRO 3 it would be gathered on ranks whose experts have rows, and only
    // there. dW does not need it.
    at::Tensor all = sum.defined() ? sum : at::zeros(saved.weight.sizes(), saved.weight.options());
    for_groups(ends, [&](int64_t e, int64_t first, int64_t rows) {
      Product::Saved own = saved.of_expert[e];
      if (!own.x.defined()) own.x = saved.x.narrow(0, first, rows);
      const auto d = products_[e]->backward(dy.narrow(0, first, rows), own,
                                            {.x = false, .sum = sum.defined() ? all[e] : at::Tensor()});
      if (!sum.defined()) all[e].copy_(d.weight);
    });
    return all;
  }

 private:
  static Product::Saved of_expert(const Saved& saved, int64_t e) {
    Product::Saved own = saved.of_expert[e];
    if (!own.weight.defined()) own.weight = saved.weight[e];
    return own;
  }

  /// Returns the packed matrix of each group; nothing if there are no rows, or a group with rows has no such matrix.
  std::vector<const ops::PrepackedMatrix*> panels_of(const ops::GroupEnds& ends, bool has_gradients) const {
    if (ends.empty() || ends.back() == 0) return {};
    std::vector<const ops::PrepackedMatrix*> panels(ends.size());
    bool all = true;
    for_groups(ends, [&](int64_t e, int64_t, int64_t) {
      panels[e] = packed_[e] ? packed_[e]->panels(has_gradients) : nullptr;
      all = all && panels[e];
    });
    return all ? panels : std::vector<const ops::PrepackedMatrix*>();
  }

  std::vector<std::shared_ptr<const Product>> products_;
  std::vector<const PackedWeight*> packed_;  // of each product; null = it has no packed weight
  int64_t out_, in_;
};

}  // namespace

at::Tensor GroupedProduct::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                   const ops::GroupEnds& ends, Saved* saved) const {
  if (saved) *saved = {x, weight};
  return ops::grouped_nt(x, weight, ends, bias);
}

at::Tensor GroupedProduct::input_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends) const {
  return ops::grouped_nn(dy, saved.weight, ends);
}

at::Tensor GroupedProduct::weight_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends,
                                           at::Tensor sum) const {
  return ops::grouped_tn(dy, saved.x, ends, std::move(sum));
}

std::vector<at::Tensor> GroupedProduct::own_gradients(const at::Tensor&, const Saved&, const ops::GroupEnds&) const {
  return {};
}

at::Tensor ExpertWrapper::forward(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, Saved*) const {
  throw Error("adapter",
              "the wrapper of a stack of experts must be outside of all wrappers of single experts: got another one "
              "around it; change the order of Parameters::Options::products");
}

Product::Gradients ExpertWrapper::backward(const at::Tensor&, const Saved&, const Wanted&) const {
  throw Error("adapter", "the wrapper of a stack of experts has no gradients of a single one");
}

std::shared_ptr<const GroupedProduct> grouped_product(Parameters& parameters, const Parameter& stack) {
  if (parameters.options().products.empty()) return std::make_shared<const GroupedProduct>();
  const std::shared_ptr<const Product> plain(std::shared_ptr<void>(), &serial_product());  // does not own it
  const tensor::MeshCoordinates& coordinates = parameters.coordinates();
  const std::vector<int64_t> sizes = stack.spec.local_shape(coordinates);
  const int64_t count = stack.spec.shape[0], here = stack.spec.room(0, coordinates),
                first = here * coordinates.index(stack.spec.splits[0].axes);
  bool is_plain = true;
  std::vector<std::shared_ptr<const ExpertWrapper>> wrappers;
  std::vector<std::shared_ptr<const Product>> products;
  for (int64_t e = 0; e < count; ++e) {
    Parameter expert = stack;
    expert.name = concat(stack.name, ".", e);
    expert.spec = tensor::ShardSpec::whole({stack.spec.shape[1], stack.spec.shape[2]});
    expert.is_stack = false;
    expert.stack = &stack;
    expert.stack_index = e - first;
    const bool is_here = stack.value.defined() && e >= first && e < first + here;
    expert.value = is_here ? without_memory({sizes[1], sizes[2]}, stack.value.options()) : at::Tensor();
    const Unwrapped one(parameters.product_for(expert, plain));
    const auto& product = one.inside;
    require(product->parameters().empty(), "experts",
            "a wrapper must declare parameters for whole stacks: got some for ", expert.name,
            "; use nn::with_low_rank, or return the product unchanged where Parameter::stack is set");
    if (e == 0) wrappers = one.wrappers;
    require(one.wrappers.size() == wrappers.size(), "experts", "adapters must be of all experts of ", stack.name,
            " or of none: got ", wrappers.size(), " of the first, and ", one.wrappers.size(), " of ", expert.name);
    is_plain = is_plain && product == plain;
    if (e >= first && e < first + here) products.push_back(product);
  }
  while (static_cast<int64_t>(products.size()) < here) products.push_back(plain);  // padding, which has no rows
  std::shared_ptr<const GroupedProduct> all;
  // A rank that has only padding has no wrapped products, but its part of a stack may be codes.
  if (is_plain && !parameters.form_of(stack))
    all = std::make_shared<const GroupedProduct>();
  else
    all = std::make_shared<const ExpertProducts>(std::move(products), sizes[1], sizes[2]);
  for (auto wrapper = wrappers.rbegin(); wrapper != wrappers.rend(); ++wrapper) all = (*wrapper)->around(all);
  return all;
}

}  // namespace colossal::nn
