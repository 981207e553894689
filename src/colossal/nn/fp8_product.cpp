#include "colossal/nn/fp8_product.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/ops/products/fp8.h"

namespace colossal::nn {
namespace {

using ops::Fp8;

enum Operand : int64_t { kInput, kWeight, kGradient, kOperands };

Fp8 format_of(Operand operand) { return operand == kGradient ? Fp8::E5m2 : Fp8::E4m3; }

ops::Scaled quantized(const at::Tensor& x, Operand operand, const at::Tensor& scale) {
  // An operand that was freed and recomputed is quantised again.
  const bool has_codes = x.scalar_type() == ops::dtype_of(format_of(operand));
  return {has_codes ? x : ops::quantize(x, format_of(operand), scale), scale};
}

/// Returns x with zeros for elements that are not finite, whose difference from themselves is NaN. LibTorch has no
/// nan_to_num on meta.
at::Tensor finite_or_zero(const at::Tensor& x) { return x.masked_fill((x - x).ne(0), 0); }

at::Tensor dequantized(const ops::Scaled& x, at::ScalarType dtype) { return ops::dequantize(x.codes, x.scale, dtype); }

/// The quantized operands of one layer, for either of its products.
class Operands {
 public:
  /// `expert`: index in the state of a stack; -1 = the state is that of one layer.
  Operands(const Fp8Recipe& recipe, std::shared_ptr<Fp8Products::State> state, int64_t expert = -1)
      : recipe_(recipe), state_(std::move(state)), expert_(expert) {}

  /// `records`: whether the largest magnitude is added to the history.
  ops::Scaled codes(const at::Tensor& x, Operand operand, bool records) const {
    return quantized(x, operand, scale_for(x, operand, records));
  }

  /// Keeps x as quantized values. The weight is kept as it is, because it exists anyway: its quantized values would
  /// need more memory, once per micro-batch.
  static void keep_x(const ops::Scaled& codes, Product::Saved& saved) {
    saved.x = codes.codes, saved.own[kInput] = codes.scale, saved.takes_given_x = true;
  }
  static void keep_weight(const at::Tensor& weight, const ops::Scaled& codes, Product::Saved& saved) {
    saved.weight = weight, saved.own[kWeight] = codes.scale;
  }

  /// Returns multiply(dequantised x, dequantised weight), which also fills `saved`.
  template <class Multiply>
  static at::Tensor emulated(const at::Tensor& x, const ops::Scaled& x_codes, const at::Tensor& weight,
                             const ops::Scaled& weight_codes, Product::Saved* saved, const Multiply& multiply) {
    const at::Tensor given_x = dequantized(x_codes, x.scalar_type());
    const at::Tensor given_weight = dequantized(weight_codes, weight.scalar_type());
    const at::Tensor y = multiply(given_x, given_weight);
    if (!saved) return y;
    require(saved->own.empty(), "fp8", "the product inside must keep nothing but its operands");
    saved->own.resize(kOperands - 1);  // scales of the operands that were kept as they were given
    if (saved->x.is_same(given_x)) keep_x(x_codes, *saved);
    if (saved->weight.is_same(given_weight)) keep_weight(weight, weight_codes, *saved);
    return y;
  }

  /// Returns the operands that the product inside reads in backward for the wanted gradients.
  static Product::Saved given(const Product::Saved& saved, at::ScalarType type, bool wants_x, bool wants_weight) {
    Product::Saved given{.out = saved.out};
    if (wants_weight) given.x = operand_of(saved.x, kInput, saved, type);
    if (wants_x) given.weight = operand_of(saved.weight, kWeight, saved, saved.weight.scalar_type());
    return given;
  }

 private:
  /// Returns an operand as the product inside expects it: dequantised, unless that product kept the operand unchanged.
  static at::Tensor operand_of(const at::Tensor& kept, Operand operand, const Product::Saved& saved,
                               at::ScalarType dtype) {
    const at::Tensor& scale = saved.own[operand];
    return scale.defined() ? dequantized(quantized(kept, operand, scale), dtype) : kept;
  }

  at::Tensor scale_for(const at::Tensor& t, Operand operand, bool records) const {
    at::Tensor amax = ops::largest_magnitude(t);
    if (state_) {
      at::Tensor now = own(state_->now).select(0, operand);
      if (records) now.copy_(at::maximum(now, amax));
      const at::Tensor past = own(state_->history).select(0, operand).amax(0);
      // The largest of the past, or that of now if the past has none (LibTorch has no where on meta). The difference
      // makes the scale NaN if this operand is not finite, whatever the history.
      amax = past + amax.masked_fill(past > 0, 0) + (amax - amax);
    }
    const at::Tensor scale = ops::scale_of(amax, format_of(operand), recipe_.margin);
    return recipe_.power_of_two ? ops::power_of_two_below(scale) : scale;
  }

  at::Tensor own(const at::Tensor& of_state) const { return expert_ < 0 ? of_state : of_state.select(0, expert_); }

  Fp8Recipe recipe_;
  std::shared_ptr<Fp8Products::State> state_;  // null = current scaling
  int64_t expert_ = -1;
};

/// Returns the index of a matrix among all matrices of its stack; -1 = it is in none.
int64_t expert_of(const Parameter& weight, const tensor::MeshCoordinates& coordinates) {
  if (!weight.stack) return -1;
  const tensor::ShardSpec& stack = weight.stack->spec;
  return stack.room(0, coordinates) * coordinates.index(stack.splits[0].axes) + weight.stack_index;
}

/// The fp8 product around a product that gathers blocks or scatters results.
class Fp8Product final : public Product {
 public:
  Fp8Product(std::shared_ptr<const Product> inner, Operands operands)
      : inner_(std::move(inner)), operands_(std::move(operands)) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    const ops::Scaled x_codes = operands_.codes(x, kInput, saved),
                      weight_codes = operands_.codes(weight, kWeight, saved);
    return Operands::emulated(x, x_codes, weight, weight_codes, saved, [&](const at::Tensor& a, const at::Tensor& b) {
      return inner_->forward(a, b, bias, out, saved);
    });
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    const at::ScalarType type = dy.scalar_type();
    const ops::Scaled dy_codes = operands_.codes(dy, kGradient, true);
    return inner_->backward(dequantized(dy_codes, type), Operands::given(saved, type, wanted.x, wanted.weight), wanted);
  }
  at::Tensor sum_over_inputs(at::Tensor part) const override { return inner_->sum_over_inputs(std::move(part)); }

 private:
  std::shared_ptr<const Product> inner_;
  Operands operands_;
};

/// The fp8 product around a direct product, which may multiply quantized values directly.
class DirectFp8Product final : public DirectWrapper {
 public:
  DirectFp8Product(std::shared_ptr<const DirectProduct> inner, Operands operands)
      : DirectWrapper(std::move(inner)), operands_(std::move(operands)) {}

  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    const ops::Scaled x_codes = operands_.codes(x, kInput, saved),
                      weight_codes = operands_.codes(weight, kWeight, saved);
    if (weight.size(0) != out || !ops::multiplies_scaled(x, x.size(1), out))
      return Operands::emulated(x, x_codes, weight, weight_codes, saved, [&](const at::Tensor& a, const at::Tensor& b) {
        return inner().local_y(a, b, bias, out, saved);
      });
    if (saved) {
      *saved = {.out = out, .own = std::vector<at::Tensor>(kOperands - 1)};
      Operands::keep_x(x_codes, *saved), Operands::keep_weight(weight, weight_codes, *saved);
    }
    return ops::scaled_nt(x_codes, weight_codes, bias, x.scalar_type());
  }

  /// Quantises dy once for both products.
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    const ops::Scaled dy_codes = operands_.codes(dy, kGradient, true);
    const bool is_scaled = (wanted.x && multiplies_dx(dy, saved)) || (wanted.weight && multiplies_dweight(dy, saved));
    if (!is_scaled) {
      const at::ScalarType type = dy.scalar_type();
      return inner().backward(dequantized(dy_codes, type), Operands::given(saved, type, wanted.x, wanted.weight),
                              wanted);
    }
    Gradients d;
    std::function<void()> wait;
    if (wanted.x) {
      d.x = local_dx(dy_codes, dy, saved);
      wait = complete_dx(d.x);  // while dW is computed
    }
    if (wanted.weight) d.weight = local_dweight(dy_codes, dy, saved, wanted);
    if (wait) wait();
    return d;
  }
  at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const override {
    return local_dx(operands_.codes(dy, kGradient, true), dy, saved);
  }
  void local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted, Gradients& d) const override {
    if (wanted.weight) d.weight = local_dweight(operands_.codes(dy, kGradient, true), dy, saved, wanted);
  }

 private:
  static bool multiplies_dx(const at::Tensor& dy, const Saved& saved) {
    return ops::multiplies_scaled(dy, dy.size(1), saved.weight.size(1));
  }
  static bool multiplies_dweight(const at::Tensor& dy, const Saved& saved) {
    return ops::multiplies_scaled(dy, dy.size(0), saved.x.size(1));
  }
  at::Tensor local_dx(const ops::Scaled& codes, const at::Tensor& dy, const Saved& saved) const {
    const at::ScalarType type = dy.scalar_type();
    if (multiplies_dx(dy, saved))
      return ops::scaled_nn(codes, quantized(saved.weight, kWeight, saved.own[kWeight]), type);
    return inner().local_dx(dequantized(codes, type), Operands::given(saved, type, true, false));
  }
  at::Tensor local_dweight(const ops::Scaled& codes, const at::Tensor& dy, const Saved& saved,
                           const Wanted& wanted) const {
    const at::ScalarType type = dy.scalar_type();
    if (multiplies_dweight(dy, saved))
      return ops::scaled_tn(codes, quantized(saved.x, kInput, saved.own[kInput]), type, wanted.sum);
    Gradients d;
    inner().local_gradients(dequantized(codes, type), Operands::given(saved, type, false, true),
                            {.x = false, .weight = true, .sum = wanted.sum}, d);
    return d.weight;
  }

  Operands operands_;
};

std::shared_ptr<const Product> in_fp8(std::shared_ptr<const Product> product, Operands operands) {
  if (auto direct = std::dynamic_pointer_cast<const DirectProduct>(product))
    return std::make_shared<DirectFp8Product>(std::move(direct), std::move(operands));
  return std::make_shared<Fp8Product>(std::move(product), std::move(operands));
}

}  // namespace

Fp8Products::Fp8Products(const Fp8Recipe& recipe) : recipe_(recipe) {
  require(recipe.history >= 1, "precision", "the amax history of fp8 must hold at least 1 step: got ", recipe.history);
}

std::shared_ptr<const Product> Fp8Products::wrap(std::shared_ptr<const Product> product, const Parameter& weight,
                                                 Parameters& parameters) {
  if (!weight.hidden_matrix) return product;
  require(product->parameters().empty(), "fp8", "an adapter must be around the product in fp8: got one inside it, for ",
          weight.name, "; put fp8 before the adapter in Parameters::Options::products");
  if (recipe_.scaling == Fp8Recipe::Scaling::Current) return in_fp8(std::move(product), {recipe_, nullptr});
  const int64_t expert = expert_of(weight, parameters.coordinates());
  const std::string name = (weight.stack ? weight.stack->name : weight.name) + ".fp8_history";
  for (const auto& state : states_)
    if (state->name == name) return in_fp8(std::move(product), {recipe_, state, expert});
  if (elsewhere_.contains(name)) return product;
  std::vector<int64_t> shape{kOperands, recipe_.history};
  if (weight.stack) shape.insert(shape.begin(), weight.stack->spec.shape[0]);
  const Buffer& history = parameters.buffer(name, tensor::ShardSpec::whole(shape), at::kFloat, BufferUse::Training);
  if (!history.value.defined()) {  // another stage computes this layer
    elsewhere_.insert(name);       // further experts of a stack must not declare it again
    return product;
  }
  shape.pop_back();
  states_.push_back(
      std::make_shared<State>(State{name, history.value, history.spec, at::zeros(shape, history.value.options())}));
  return in_fp8(std::move(product), {recipe_, states_.back(), expert});
}

void Fp8Products::end_step(ops::RankReduction& ranks) {
  if (states_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> seen;
  for (const auto& state : states_) seen.push_back(finite_or_zero(state->now).flatten());
  at::Tensor all = at::cat(seen);
  ranks.max(all);
  int64_t first = 0;
  for (const auto& state : states_) {
    const at::Tensor now = all.narrow(0, first, state->now.numel()).view(state->now.sizes());  // [(experts,) 3]
    first += state->now.numel();
    const at::Tensor next = at::cat({now.unsqueeze(-1), state->history.narrow(-1, 0, recipe_.history - 1)}, -1);
    // A step in which an expert got no token leaves no trace. Weights of 0 and 1 are exact for finite values.
    const at::Tensor computed = (now.amax(-1, /*keepdim=*/true) > 0).unsqueeze(-1);
    state->history.lerp_(next, computed.to(at::kFloat));
    state->now.zero_();
  }
}

}  // namespace colossal::nn
