#include "colossal/nn/prepacked_layers.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"

namespace colossal::nn {
namespace {

at::Tensor multiplied(const ops::PrepackedMatrix& weight, const at::Tensor& x, const at::Tensor& bias) {
  return weight.multiply(x, bias.defined() ? bias.to(at::kFloat).contiguous() : bias);
}
at::Tensor multiplied(const ops::CodedMatrix& weight, const at::Tensor& x, const at::Tensor& bias) {
  return weight.multiply(x, bias);
}

class PrepackedProduct final : public Product {
 public:
  PrepackedProduct(std::shared_ptr<const Product> inner, std::shared_ptr<const PrepackedLayers::Packed> weight)
      : inner_(std::move(inner)), direct_(dynamic_cast<const DirectProduct&>(*inner_)), weight_(std::move(weight)) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor&, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    require(!saved, "prepacked", "packed weights support forward only: got a pass that needs gradients");
    require(weight_->has_value(), "prepacked", "a weight must be packed before its first product");
    const at::Tensor first = direct_.sums_y() ? at::Tensor() : bias;
    at::Tensor y = std::visit([&](const auto& packed) { return multiplied(packed, x, first); }, **weight_);
    if (y.size(-1) != out) y = y.narrow(-1, 0, out);
    return direct_.complete_y(y, bias);
  }
  Gradients backward(const at::Tensor&, const Saved&, const Wanted&) const override {
    throw Error("prepacked", "packed weights support forward only: got a pass that needs gradients");
  }

 private:
  std::shared_ptr<const Product> inner_;
  const DirectProduct& direct_;
  std::shared_ptr<const PrepackedLayers::Packed> weight_;
};

/// Whether there are kernels for it, which want it laid out.
bool has_panels(const at::Tensor& weight) {
  return weight.is_cpu() && (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16);
}

bool is_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

/// What codes are made of.
at::ScalarType narrow_or_fp32(const at::Tensor& x) { return is_bf16(x) ? at::kBFloat16 : at::kFloat; }

}  // namespace

PrepackedLayers::PrepackedLayers(const WeightPacking& packing) : packing_(packing) {
  require(packing.bits == 0 || packing.bits == 8 || packing.bits == 4, "quantization",
          "quantized weights must have 8 or 4 bits: got ", packing.bits);
  require(!packing.floating || packing.bits == 8, "quantization",
          "quantized weights in floating point must have 8 bits: got ", packing.bits);
  require(packing.group >= 8 && packing.group % 8 == 0, "quantization", "group must be a multiple of 8 inputs: got ",
          packing.group);
}

std::shared_ptr<const Product> PrepackedLayers::wrap(std::shared_ptr<const Product> product, const Parameter& weight) {
  if (!weight.value.defined()) return product;  // another stage multiplies with it
  const bool is_direct = dynamic_cast<const DirectProduct*>(product.get()) != nullptr;
  require(is_direct || packing_.bits == 0, "quantization", weight.name,
          " cannot be multiplied in quantized form with this layout; set tensor.mode = 1d and tensor.sequence = false");
  if (!is_direct || (packing_.bits == 0 && !has_panels(weight.value))) return product;
  std::shared_ptr<Packed>& packed = packed_[weight.name];
  if (!packed) packed = std::make_shared<Packed>();
  return std::make_shared<PrepackedProduct>(std::move(product), packed);
}

tensor::Stored PrepackedLayers::loaded(Parameter& parameter) {
  const at::TensorOptions options = parameter.value.options().requires_grad(false);
  return {options, parameter.value.sizes().vec(), [this, &parameter, options](bool) {
            finish();
            parameter.value.set_data(at::empty(parameter.value.sizes(), options));
            pending_ = &parameter;
            return tensor::Held{parameter.value.detach()};
          }};
}

bool PrepackedLayers::take(const Parameter& parameter, const ops::GroupCodes& codes) {
  const auto found = packed_.find(parameter.name);
  if (found == packed_.end() || packing_.bits != 0) return false;
  *found->second = ops::PrepackedMatrix(codes);
  return !parameter.looked_up;
}

void PrepackedLayers::finish() {
  if (pending_) pack(*pending_);
  pending_ = nullptr;
}

void PrepackedLayers::pack(Parameter& parameter) {
  const auto found = packed_.find(parameter.name);
  if (found == packed_.end() || *found->second) return;
  const at::Tensor value = parameter.value.detach();
  const int64_t bits = parameter.hidden_matrix ? packing_.bits : 8;
  const auto rounded = [&] {
    return ops::round_to_codes(value.cpu().to(narrow_or_fp32(value)), {bits, packing_.group});
  };
  Packed& packed = *found->second;
  if (packing_.bits == 0)
    packed = ops::PrepackedMatrix::of(value, is_bf16(value) ? ops::PackedType::Bf16 : ops::PackedType::Float);
  else if (has_panels(value))
    packed =
        packing_.floating ? ops::PrepackedMatrix::of(value, ops::PackedType::Fp8) : ops::PrepackedMatrix(rounded());
  else if (packing_.floating)
    packed = ops::CodedMatrix(value, value.options());
  else
    packed = ops::CodedMatrix(rounded(), value.options());
  if (!parameter.looked_up) parameter.value.set_data(without_memory(value.sizes(), value.options()));
}

int64_t PrepackedLayers::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, packed] : packed_)
    if (packed->has_value()) sum += std::visit([](const auto& matrix) { return matrix.bytes(); }, **packed);
  return sum;
}

}  // namespace colossal::nn
