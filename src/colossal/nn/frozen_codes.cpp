#include "colossal/nn/frozen_codes.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"

namespace colossal::nn {
namespace {

int64_t bytes_of_codes(const ops::CodedMatrix& matrix) { return matrix.bytes(); }
int64_t bytes_of_codes(const ops::Nf4Matrix& matrix) {
  int64_t sum = 0;
  for (const ops::Nf4Weight& part : matrix.parts()) sum += static_cast<int64_t>(part.bytes().nbytes());
  return sum;
}

at::Tensor gradient_of_x(const ops::CodedMatrix& matrix, const at::Tensor& dy) { return matrix.input_gradient(dy); }
at::Tensor gradient_of_x(const ops::Nf4Matrix& matrix, const at::Tensor& dy) {
  const int64_t padding = matrix.outputs() - dy.size(-1);
  return matrix.input_gradient(padding > 0 ? at::constant_pad_nd(dy, {0, padding}) : dy);
}

at::Tensor decoded_rows(const ops::CodedMatrix& matrix, int64_t first, int64_t count, at::ScalarType type) {
  return matrix.rows(first, count, type);
}
at::Tensor decoded_rows(const ops::Nf4Matrix& matrix, int64_t first, int64_t count, at::ScalarType type) {
  return matrix.dequantize(type, {.row = first, .rows = count, .columns = matrix.inputs()});
}

/// Returns true if only the product of a weight reads it, so that it may have codes. `weight` may be one matrix of a
/// stack.
bool may_have_codes(const Parameter& weight) {
  const size_t dimensions = weight.is_stack ? 3 : 2;
  return weight.hidden_matrix && !weight.looked_up && !weight.is_added && !weight.treatment.trains &&
         weight.spec.shape.size() == dimensions;
}

class ProductOfCodes final : public DirectWrapper {
 public:
  ProductOfCodes(std::shared_ptr<const DirectProduct> inner, std::shared_ptr<const FrozenCodes::Matrices> matrices,
                 int64_t index)
      : DirectWrapper(std::move(inner)), matrices_(std::move(matrices)), index_(static_cast<size_t>(index)) {}

  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (matrices_->empty()) return inner().local_y(x, weight, bias, out, saved);
    // x is for the gradients of adapters around this product. The weight has no memory.
    if (saved) *saved = {x, weight, out};
    return std::visit(
        [&](const auto& one) {
          if (one.outputs() == out) return one.multiply(x, bias);
          const at::Tensor y = one.multiply(x).narrow(-1, 0, out).contiguous();
          return bias.defined() ? at::Tensor(y).add_(bias) : y;
        },
        matrix());
  }
  at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const override {
    if (matrices_->empty()) return inner().local_dx(dy, saved);
    return std::visit([&](const auto& one) { return gradient_of_x(one, dy); }, matrix());
  }
  void local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted, Gradients& d) const override {
    if (matrices_->empty()) return inner().local_gradients(dy, saved, wanted, d);
    require(!wanted.weight, "quantization", "a weight that is kept as codes must be frozen: its gradient is wanted");
  }
  at::Tensor local_rows(const at::Tensor& weight, int64_t first, int64_t count) const override {
    if (matrices_->empty()) return inner().local_rows(weight, first, count);
    return std::visit([&](const auto& one) { return decoded_rows(one, first, count, weight.scalar_type()); }, matrix());
  }

 private:
  const FrozenCodes::Matrix& matrix() const { return (*matrices_)[index_]; }

  std::shared_ptr<const FrozenCodes::Matrices> matrices_;
  size_t index_;
};

}  // namespace

std::shared_ptr<const Product> FrozenCodes::wrap(std::shared_ptr<const Product> product, const Parameter& weight) {
  if (!weight.value.defined() || !may_have_codes(weight)) return product;
  require(product->parameters().empty(), "quantization",
          "an adapter must be around the product with codes: got one inside it, for ", weight.name);
  auto direct = std::dynamic_pointer_cast<const DirectProduct>(product);
  if (!direct) return product;
  auto& matrices = of_[weight.stack ? weight.stack->name : weight.name];
  if (!matrices) matrices = std::make_shared<Matrices>();
  return std::make_shared<ProductOfCodes>(std::move(direct), matrices, weight.stack ? weight.stack_index : 0);
}

std::vector<Parameter*> FrozenCodes::candidates(Parameters& parameters) const {
  std::vector<Parameter*> found;
  for (Parameter& p : parameters)
    if (of_.contains(p.name) && may_have_codes(p)) found.push_back(&p);  // a layer may mark a weight after wrap()
  return found;
}

void FrozenCodes::put(Parameter& parameter, std::vector<Matrix> matrices) {
  const int64_t wanted = parameter.is_stack ? parameter.value.size(0) : 1;
  require(static_cast<int64_t>(matrices.size()) == wanted, "quantization", parameter.name, " must have the codes of ",
          wanted, " matrices: got ", matrices.size());
  *of_.at(parameter.name) = std::move(matrices);
  parameter.has_codes = true;
}

int64_t FrozenCodes::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, matrices] : of_)
    for (const Matrix& matrix : *matrices)
      sum += std::visit([](const auto& one) { return bytes_of_codes(one); }, matrix);
  return sum;
}

}  // namespace colossal::nn
