#include "colossal/nn/packed_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/ops/huge_pages.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::nn {
namespace {

at::Tensor multiplied(const ops::PrepackedMatrix& weight, const at::Tensor& x, const at::Tensor& bias) {
  return weight.multiply(x, bias.defined() ? bias.to(at::kFloat).contiguous() : bias);
}
at::Tensor multiplied(const ops::CodedMatrix& weight, const at::Tensor& x, const at::Tensor& bias) {
  return weight.multiply(x, bias);
}

class PrepackedProduct final : public DirectWrapper, public PackedWeight {
 public:
  PrepackedProduct(std::shared_ptr<const DirectProduct> inner, std::shared_ptr<const PackedWeights::Packed> weight,
                   const WeightPacking& packing)
      : DirectWrapper(std::move(inner)),
        packed_(std::move(weight)),
        keeps_values_(packing.keeps_values),
        in_training_(packing.in_training) {}

  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    require(!saved || keeps_values_, "prepacked",
            "packed weights without their values support forward only: got a pass that needs gradients; keep the "
            "values (WeightPacking::keeps_values), or run it without gradients");
    if (uses_values(saved != nullptr)) return inner().local_y(x, weight, bias, out, saved);
    const auto& packed = matrix();
    require(packed.has_value() || packed_->has_other_form, "prepacked",
            "a weight must be packed before its first product");
    if (saved) *saved = {x, weight, out};
    if (!packed) return product_of_rows(x, weight, bias, out);
    const at::Tensor y = std::visit([&](const auto& one) { return multiplied(one, x, bias); }, *packed);
    return y.size(-1) != out ? y.narrow(-1, 0, out) : y;
  }
  bool has_backward() const override { return keeps_values_ && inner().has_backward(); }
  bool reads_weight(bool has_gradients) const override {
    return (uses_values(has_gradients) || packed_->has_other_form) && inner().reads_weight(has_gradients);
  }
  bool multiplies_by_row(bool has_gradients) const override {
    if (uses_values(has_gradients)) return false;
    const auto& packed = matrix();
    return !packed || std::holds_alternative<ops::PrepackedMatrix>(*packed);
  }
  const ops::PrepackedMatrix* panels(bool has_gradients) const override {
    if (uses_values(has_gradients)) return nullptr;
    const auto& packed = matrix();
    return packed ? std::get_if<ops::PrepackedMatrix>(&*packed) : nullptr;
  }

 private:
  const decltype(PackedWeights::Packed::matrix)& matrix() const {
    if (const std::function<void()> load = packed_->load) load();  // a copy: the call removes the member
    return packed_->matrix;
  }
  bool uses_values(bool has_gradients) const {
    return keeps_values_ && ((has_gradients && !in_training_) || !(matrix() || packed_->has_other_form));
  }
  /// Packs some rows of the weight at a time, which the product inside decodes.
  at::Tensor product_of_rows(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out) const {
    constexpr int64_t kRows = 512;
    std::vector<at::Tensor> parts;
    for (int64_t first = 0; first < out; first += kRows) {
      const int64_t count = std::min(kRows, out - first);
      parts.push_back(ops::PrepackedMatrix::product(x, inner().local_rows(weight, first, count),
                                                    bias.defined() ? bias.narrow(0, first, count) : bias));
    }
    return parts.size() == 1 ? parts.front() : at::cat(parts, 1);
  }

  std::shared_ptr<const PackedWeights::Packed> packed_;
  bool keeps_values_, in_training_;
};

/// Returns true if there are kernels for the weight that read a packed layout, or a recorded step has them.
bool has_panels(const at::Tensor& weight) {
  const bool is_on_cpu = weight.defined() && (weight.is_cpu() || (weight.is_meta() && tensor::is_for_cpu(weight)));
  return is_on_cpu && (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16);
}

bool is_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }

/// Returns the dtype from which quantized values are computed.
at::ScalarType narrow_or_fp32(const at::Tensor& x) { return is_bf16(x) ? at::kBFloat16 : at::kFloat; }

}  // namespace

PackedWeights::PackedWeights(const WeightPacking& packing) : packing_(packing) {
  require(packing.bits == 0 || packing.bits == 8 || packing.bits == 4, "quantization",
          "quantized weights must have 8 or 4 bits: got ", packing.bits);
  require(!packing.floating || packing.bits == 8, "quantization",
          "quantized weights in floating point must have 8 bits: got ", packing.bits);
  require(packing.group >= 8 && packing.group % 8 == 0, "quantization", "group must be a multiple of 8 inputs: got ",
          packing.group);
  require(packing.keeps_values || !packing.in_training, "prepacked",
          "packed weights in training must keep their values, which backward reads: set WeightPacking::keeps_values");
}

std::shared_ptr<const Product> PackedWeights::wrap(std::shared_ptr<const Product> product, const Parameter& weight) {
  const Parameter* const stored = weight.stack ? weight.stack : &weight;
  const bool is_convolution = !weight.stack && weight.spec.shape.size() > 2;
  if (is_convolution || weight.between_blocks) return product;
  // A frozen weight may get another form between two calls: with the first matrix of its stack, which another rank may
  // have, or if another set of layers wraps it again.
  auto direct = std::dynamic_pointer_cast<const DirectProduct>(product);
  if (direct && has_panels(stored->value)) known_.insert(stored);
  if (!weight.value.defined()) return product;  // another stage or rank multiplies with it
  require(product->parameters().empty(), "prepacked",
          "an adapter must be around the packed product: got one inside it, "
          "for ",
          weight.name, "; put the packing before the adapter in Parameters::Options::products");
  require(direct || packing_.bits == 0, "quantization", weight.name,
          " cannot be multiplied in quantized form with this layout; set tensor.mode = 1d and tensor.sequence = false");
  if (!direct || (packing_.bits == 0 && !known_.contains(stored))) return product;
  Layer& layer = packed_[weight.name];
  if (!layer.packed) layer = {std::make_shared<Packed>(), stored, weight.stack ? weight.stack_index : -1};
  return std::make_shared<PrepackedProduct>(std::move(direct), layer.packed, packing_);
}

tensor::Stored PackedWeights::loaded(Parameter& parameter) {
  const at::TensorOptions options = parameter.value.options().requires_grad(false);
  return {options, parameter.value.sizes().vec(), [this, &parameter, options](bool) {
            finish();
            const at::IntArrayRef sizes = parameter.value.sizes();
            parameter.value.set_data(parameter.value.is_cpu()
                                         ? ops::empty_in_huge_pages(sizes, parameter.value.scalar_type())
                                         : at::empty(sizes, options));
            pending_ = &parameter;
            return tensor::Held{parameter.value.detach()};
          }};
}

bool PackedWeights::takes_codes(const std::string& weight) const {
  return packed_.contains(weight) && packing_.bits == 0;
}

bool PackedWeights::takes_rows(const std::string& weight) const {
  const auto found = packed_.find(weight);
  if (found == packed_.end() || packing_.keeps_values) return false;
  const Parameter& parameter = *found->second.parameter;
  return has_panels(parameter.value) && !parameter.looked_up;  // loaded() fills and packs what is looked up
}

bool PackedWeights::take(const std::string& weight, const ops::GroupCodes& codes) {
  if (!takes_codes(weight)) return false;
  // Kernels multiply codes of 8 bits as numbers from -127 to 127.
  if (codes.bits == 8 && codes.codes.min().item<uint8_t>() == 0) return false;
  const Layer& layer = packed_.at(weight);
  layer.packed->matrix = ops::PrepackedMatrix(codes);
  return !layer.parameter->looked_up && !packing_.keeps_values;
}

bool PackedWeights::take(const std::string& weight, const std::vector<at::Tensor>& rows) {
  if (!takes_rows(weight)) return false;
  Layer& layer = packed_.at(weight);
  if (layer.packed->matrix) return true;  // taken as quantized values
  for (const at::Tensor& part : rows)
    if (part.scalar_type() != at::kHalf && !has_panels(part)) return false;
  pack(layer, rows);
  return true;
}

bool PackedWeights::take_later(const std::string& parameter, std::function<void()> load) {
  if (packing_.bits != 0 || packing_.keeps_values) return false;
  const Parameter* found = nullptr;
  for (const auto& [name, layer] : packed_)
    if (layer.parameter->name == parameter) found = layer.parameter;
  if (!found || found->looked_up) return false;
  postponed_.emplace_back(found, std::move(load));
  for (auto& [name, layer] : packed_)
    if (layer.parameter == found) layer.packed->load = [this, found] { this->load(*found); };
  return true;
}

bool PackedWeights::view(Parameter& parameter, const std::vector<at::Tensor>& rows) {
  const at::Tensor& value = parameter.value;
  if (packing_.bits != 0 || packing_.keeps_values || !parameter.looked_up || rows.size() != 1) return false;
  const at::Tensor& table = rows.front();
  if (!value.is_cpu() || table.scalar_type() != value.scalar_type() || !table.is_contiguous()) return false;
  parameter.value.set_data(table);
  postponed_.emplace_back(&parameter, [this, &parameter] {
    const at::Tensor copy = ops::empty_in_huge_pages(parameter.value.sizes(), parameter.value.scalar_type());
    copy.copy_(parameter.value.detach());
    parameter.value.set_data(copy);
    pack(parameter);
  });
  for (auto& [name, layer] : packed_)
    if (layer.parameter == &parameter) layer.packed->load = [this, &parameter] { load(parameter); };
  return true;
}

bool PackedWeights::load_next() {
  if (postponed_.empty()) return false;
  // A view may keep its part of the file in memory until the file is closed, so its copy is made when all others are.
  const auto next =
      std::find_if(postponed_.begin(), postponed_.end(), [](const auto& one) { return !one.first->looked_up; });
  load(*(next == postponed_.end() ? postponed_.front() : *next).first);
  return true;
}

void PackedWeights::load(const Parameter& parameter) {
  const auto found =
      std::find_if(postponed_.begin(), postponed_.end(), [&](const auto& one) { return one.first == &parameter; });
  found->second();
  finish();
  postponed_.erase(found);
  for (auto& [name, layer] : packed_)
    if (layer.parameter == &parameter) layer.packed->load = nullptr;
}

void PackedWeights::finish() {
  if (pending_) pack(*pending_);
  pending_ = nullptr;
}

void PackedWeights::require_values() const {
  require(packing_.keeps_values, "prepacked",
          "packed weights without their values cannot be packed again: set WeightPacking::keeps_values");
}

void PackedWeights::release() {
  require_values();
  for (const auto& [name, layer] : packed_) layer.packed->matrix.reset(), layer.packed->has_other_form = false;
}

void PackedWeights::repack() {
  require_values();
  const at::NoGradGuard no_grad;
  // The matrices of a stack are neighbours in the map. One scope for all of them: under ZeRO 3 each scope may gather
  // the stack, and all ranks open the same ones, however many of its matrices they hold.
  for (auto next = packed_.begin(); next != packed_.end();) {
    const Parameter* parameter = next->second.parameter;
    if (packing_.bits == 0 && !has_panels(parameter->value)) {
      next++->second.packed->has_other_form = true;  // a frozen weight that got it after wrap()
      continue;
    }
    const tensor::ReadScope read({parameter->value});
    for (; next != packed_.end() && next->second.parameter == parameter; ++next) pack(next->second);
  }
}

void PackedWeights::pack(Parameter& parameter) {
  bool packs = false;
  {
    const tensor::ReadScope read({parameter.value});
    for (auto& [name, layer] : packed_) {
      if (layer.parameter != &parameter || layer.packed->matrix) continue;
      pack(layer);
      packs = true;
    }
  }
  if (packs && !parameter.looked_up && !packing_.keeps_values)
    parameter.value.set_data(without_memory(parameter.value.sizes(), parameter.value.options()));
}

void PackedWeights::pack(Layer& layer) const { pack(layer, {layer.value().detach()}); }

void PackedWeights::pack(Layer& layer, const std::vector<at::Tensor>& rows) const {
  const Parameter& parameter = *layer.parameter;
  const at::Tensor& model = parameter.value;  // for its dtype and device
  auto& packed = layer.packed->matrix;
  if (packing_.bits == 0) {
    auto* held = packed ? std::get_if<ops::PrepackedMatrix>(&*packed) : nullptr;
    if (held)
      held->put(rows);  // in place, because products may have announced the memory that they read next
    else
      packed = ops::PrepackedMatrix::of(rows, is_bf16(model) ? ops::PackedType::Bf16 : ops::PackedType::Float);
    return;
  }
  const at::Tensor value = (rows.size() == 1 ? rows.front() : at::cat(rows)).to(model.scalar_type());
  const int64_t bits = parameter.hidden_matrix ? packing_.bits : 8;
  const auto rounded = [&] {
    return ops::round_to_codes(value.cpu().to(narrow_or_fp32(value)), {bits, packing_.group});
  };
  if (has_panels(value))
    packed =
        packing_.floating ? ops::PrepackedMatrix::of(value, ops::PackedType::Fp8) : ops::PrepackedMatrix(rounded());
  else if (packing_.floating)
    packed = ops::CodedMatrix(value, value.options());
  else
    packed = ops::CodedMatrix(rounded(), value.options());
}

int64_t PackedWeights::bytes() const {
  int64_t sum = 0;
  for (const auto& [name, layer] : packed_)
    if (const auto& packed = layer.packed->matrix)
      sum += std::visit([](const auto& matrix) { return matrix.bytes(); }, *packed);
  return sum;
}

}  // namespace colossal::nn
