#include "colossal/nn/frozen_product.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/ops/products/prepacked_matrix.h"

namespace colossal::nn {
namespace {

/// What both wrappers know of their weight.
class ReadsFrozen {
 public:
  ReadsFrozen(std::shared_ptr<const FrozenForm> form, at::ScalarType type) : form_(std::move(form)), type_(type) {}
  virtual ~ReadsFrozen() = default;

  const FrozenForm& form() const { return *form_; }
  at::ScalarType type() const { return type_; }
  /// A caller may pass values in place of what is stored: those of W + s B A.
  bool is_stored(const at::Tensor& weight) const {
    return weight.defined() && weight.scalar_type() == form_->dtype() && form_->dtype() != type_;
  }
  at::Tensor values_of(const at::Tensor& weight) const {
    return is_stored(weight) ? form_->decode(weight.detach(), type_) : weight;
  }

 private:
  std::shared_ptr<const FrozenForm> form_;
  at::ScalarType type_;  // of the model
};

class DirectFrozen final : public DirectWrapper, public ReadsFrozen {
 public:
  DirectFrozen(std::shared_ptr<const DirectProduct> inner, ReadsFrozen frozen)
      : DirectWrapper(std::move(inner)), ReadsFrozen(std::move(frozen)) {}

  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (!is_stored(weight)) return inner().local_y(x, weight, bias, out, saved);
    const bool by_row = inner().multiplies_by_row(saved != nullptr);
    if (saved) *saved = {x, weight, out};
    return by_row ? ops::PrepackedMatrix::product(x, values_of(weight), bias) : form().multiply(weight, x, bias);
  }
  bool reads_weight(bool) const override { return true; }
  at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const override {
    return is_stored(saved.weight) ? form().input_gradient(saved.weight, dy) : inner().local_dx(dy, saved);
  }
  at::Tensor local_rows(const at::Tensor& weight, int64_t first, int64_t count) const override {
    return is_stored(weight) ? form().rows(weight.detach(), first, count, type())
                             : inner().local_rows(weight, first, count);
  }
};

class GatheredFrozen final : public Product, public ReadsFrozen {
 public:
  GatheredFrozen(std::shared_ptr<const Product> inner, ReadsFrozen frozen)
      : ReadsFrozen(std::move(frozen)), inner_(std::move(inner)) {}

  std::vector<Parameter*> parameters() const override { return inner_->parameters(); }
  std::vector<int64_t> first_outputs() const override { return inner_->first_outputs(); }
  at::Tensor sum_over_inputs(at::Tensor part) const override { return inner_->sum_over_inputs(std::move(part)); }
  bool has_backward() const override { return inner_->has_backward(); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    const at::Tensor values = values_of(weight);
    const at::Tensor y = inner_->forward(x, values, bias, out, saved);
    if (saved && saved->weight.is_same(values)) saved->weight = weight;
    return y;
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    if (!wanted.x || !is_stored(saved.weight)) return inner_->backward(dy, saved, wanted);
    Saved given = saved;
    given.weight = values_of(saved.weight);
    return inner_->backward(dy, given, wanted);
  }

 private:
  std::shared_ptr<const Product> inner_;
};

std::shared_ptr<const Product> reading(std::shared_ptr<const Product> product, std::shared_ptr<const FrozenForm> form,
                                       at::ScalarType type) {
  ReadsFrozen frozen(std::move(form), type);
  if (auto direct = std::dynamic_pointer_cast<const DirectProduct>(product))
    return std::make_shared<DirectFrozen>(std::move(direct), std::move(frozen));
  return std::make_shared<GatheredFrozen>(std::move(product), std::move(frozen));
}

}  // namespace

std::shared_ptr<const Product> with_frozen_form(std::shared_ptr<const Product> product, const Parameter& weight,
                                                Parameters& parameters, std::shared_ptr<const FrozenForm> form) {
  require(product->parameters().empty(), "adapter",
          "the form of a frozen weight must be inside of adapters: got one "
          "around an adapter of ",
          weight.name, "; call with_frozen_form() first");
  const Parameter& stored = weight.stack ? *weight.stack : weight;
  if (!parameters.form_of(stored)) parameters.store_as(stored, std::move(form));
  return reads_frozen_form(std::move(product), weight, parameters);
}

std::shared_ptr<const Product> reads_frozen_form(std::shared_ptr<const Product> product, const Parameter& weight,
                                                 const Parameters& parameters) {
  std::shared_ptr<const FrozenForm> form = parameters.form_of(weight.stack ? *weight.stack : weight);
  if (!form || !weight.value.defined()) return product;
  return reading(std::move(product), std::move(form), parameters.options().dtype);
}

at::Tensor weight_values(const Product& product, const at::Tensor& weight) {
  const auto* frozen = dynamic_cast<const ReadsFrozen*>(&product);
  return frozen ? frozen->values_of(weight) : weight;
}

}  // namespace colossal::nn
