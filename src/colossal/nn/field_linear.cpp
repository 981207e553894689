#include "colossal/nn/field_linear.h"

#include "colossal/nn/linear.h"

namespace colossal::nn {

FieldLinear::FieldLinear(Layers& make, const std::string& name, int64_t in, int64_t hidden, double deviation)
    : weight_(make.vector(name + ".weight", {hidden, in}, {.init = Init::normal(deviation), .decay = true})),
      bias_(make.vector(name + ".bias", {hidden}, {})),
      product_(make.parameters().product_between_blocks(weight_->parameter())) {}

at::Tensor FieldLinear::forward(const at::Tensor& x) const {
  return linear(x, weight_->value(), bias_->value(), nullptr, {}, *product_);
}

}  // namespace colossal::nn
