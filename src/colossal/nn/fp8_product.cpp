#include "colossal/nn/fp8_product.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/ops/fp8.h"
#include "colossal/ops/scaled_product.h"

namespace colossal::nn {
namespace {

using ops::Fp8;

enum Operand : int64_t { kInput, kWeight, kGradient, kOperands };

Fp8 format_of(Operand operand) { return operand == kGradient ? Fp8::E5m2 : Fp8::E4m3; }

ops::Scaled quantized(const at::Tensor& x, Operand operand, const at::Tensor& scale) {
  // What was forgotten and computed again is quantised again.
  const bool has_codes = x.scalar_type() == ops::dtype_of(format_of(operand));
  return {has_codes ? x : ops::quantize(x, format_of(operand), scale), scale};
}

at::Tensor dequantized(const ops::Scaled& x, at::ScalarType dtype) { return ops::dequantize(x.codes, x.scale, dtype); }

class Fp8Product final : public Product {
 public:
  Fp8Product(std::shared_ptr<const Product> inner, const Fp8Recipe& recipe, std::shared_ptr<Fp8Layers::State> state)
      : inner_(std::move(inner)),
        direct_(dynamic_cast<const DirectProduct*>(inner_.get())),
        recipe_(recipe),
        state_(std::move(state)) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    const ops::Scaled x_codes = quantized(x, kInput, scale_for(x, kInput, saved)),
                      weight_codes = quantized(weight, kWeight, scale_for(weight, kWeight, saved));
    // The weight is there anyway: its codes would be bytes more, once a micro-batch.
    const auto keep_x = [&] {
      saved->x = x_codes.codes, saved->own[kInput] = x_codes.scale, saved->takes_given_x = true;
    };
    const auto keep_weight = [&] { saved->weight = weight, saved->own[kWeight] = weight_codes.scale; };
    if (direct_ && weight.size(0) == out && ops::multiplies_scaled(x, x.size(1), out)) {
      if (saved) {
        *saved = {.out = out, .own = std::vector<at::Tensor>(kOperands - 1)};
        keep_x(), keep_weight();
      }
      const at::Tensor first = direct_->sums_y() ? at::Tensor() : bias;
      return direct_->complete_y(ops::scaled_nt(x_codes, weight_codes, first, x.scalar_type()), bias);
    }
    const at::Tensor given_x = dequantized(x_codes, x.scalar_type());
    const at::Tensor given_weight = dequantized(weight_codes, weight.scalar_type());
    const at::Tensor y = inner_->forward(given_x, given_weight, bias, out, saved);
    if (!saved) return y;
    require(saved->own.empty(), "fp8", "the product inside must keep nothing but its operands");
    saved->own.resize(kOperands - 1);  // scales of those operands that were kept as they were given
    if (saved->x.is_same(given_x)) keep_x();
    if (saved->weight.is_same(given_weight)) keep_weight();
    return y;
  }

  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    const at::ScalarType type = dy.scalar_type();
    const ops::Scaled dy_codes = quantized(dy, kGradient, scale_for(dy, kGradient, true));
    Gradients d;
    Wanted rest = wanted;  // what is not made of codes
    std::function<void()> wait;
    if (direct_ && wanted.x && ops::multiplies_scaled(dy, dy.size(1), saved.weight.size(1))) {
      d.x = ops::scaled_nn(dy_codes, quantized(saved.weight, kWeight, saved.own[kWeight]), type);
      wait = direct_->complete_dx(d.x);  // while dW is computed
      rest.x = false;
    }
    if (direct_ && wanted.weight && ops::multiplies_scaled(dy, dy.size(0), saved.x.size(1))) {
      d.weight = ops::scaled_tn(dy_codes, quantized(saved.x, kInput, saved.own[kInput]), type, wanted.sum);
      rest.weight = false;
    }
    if (rest.x || rest.weight) add_emulated(d, dy_codes, type, saved, rest);
    if (wait) wait();
    return d;
  }

 private:
  /// What is wanted, by the product inside.
  void add_emulated(Gradients& d, const ops::Scaled& dy_codes, at::ScalarType type, const Saved& saved,
                    const Wanted& wanted) const {
    Saved given{.out = saved.out};
    if (wanted.weight) given.x = operand_of(saved.x, kInput, saved, type);
    if (wanted.x) given.weight = operand_of(saved.weight, kWeight, saved, saved.weight.scalar_type());
    const Gradients found = inner_->backward(dequantized(dy_codes, type), given, wanted);
    if (wanted.x) d.x = found.x;
    if (wanted.weight) d.weight = found.weight;
  }

  /// As the product inside wants it: dequantised, unless it kept it as it is.
  static at::Tensor operand_of(const at::Tensor& kept, Operand operand, const Saved& saved, at::ScalarType dtype) {
    const at::Tensor& scale = saved.own[operand];
    return scale.defined() ? dequantized(quantized(kept, operand, scale), dtype) : kept;
  }

  at::Tensor scale_for(const at::Tensor& t, Operand operand, bool records) const {
    at::Tensor amax = ops::largest_magnitude(t);
    if (state_) {
      at::Tensor now = state_->now.select(0, operand);
      if (records) now.copy_(at::maximum(now, amax));
      const at::Tensor past = state_->history.select(0, operand).max();
      // The difference is NaN where this operand is not finite, whatever came before.
      amax = at::where(past > 0, past, amax) + (amax - amax);
    }
    const at::Tensor scale = ops::scale_of(amax, format_of(operand), recipe_.margin);
    return recipe_.power_of_two ? ops::power_of_two_below(scale) : scale;
  }

  std::shared_ptr<const Product> inner_;
  const DirectProduct* direct_;  // the same where it is one: then products may be made of codes
  Fp8Recipe recipe_;
  std::shared_ptr<Fp8Layers::State> state_;  // null: current scaling
};

}  // namespace

Fp8Layers::Fp8Layers(const Fp8Recipe& recipe) : recipe_(recipe) {
  require(recipe.history >= 1, "precision", "the amax history of fp8 must hold at least 1 step: got ", recipe.history);
}

std::shared_ptr<const Product> Fp8Layers::wrap(std::shared_ptr<const Product> product, const Parameter& weight,
                                               Parameters& parameters) {
  if (!weight.hidden_matrix) return product;
  if (recipe_.scaling == Fp8Recipe::Scaling::Current)
    return std::make_shared<Fp8Product>(std::move(product), recipe_, nullptr);
  const std::string name = weight.name + ".fp8_history";
  for (const auto& state : states_)
    if (state->name == name) return std::make_shared<Fp8Product>(std::move(product), recipe_, state);
  const Buffer& history =
      parameters.buffer(name, tensor::ShardSpec::whole({kOperands, recipe_.history}), at::kFloat, BufferUse::Training);
  if (!history.value.defined()) return product;  // another stage computes this layer
  states_.push_back(std::make_shared<State>(
      State{name, history.value, history.spec, at::zeros({kOperands}, history.value.options())}));
  return std::make_shared<Fp8Product>(std::move(product), recipe_, states_.back());
}

void Fp8Layers::end_step(ops::RankReduction& ranks) {
  if (states_.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> seen;
  for (const auto& state : states_) seen.push_back(state->now.nan_to_num(0, 0, 0));
  at::Tensor all = at::cat(seen);
  ranks.max(all);
  for (size_t i = 0; i < states_.size(); ++i) {
    State& state = *states_[i];
    state.history.copy_(state.history.roll(1, 1));
    state.history.select(1, 0).copy_(all.narrow(0, static_cast<int64_t>(i) * kOperands, kOperands));
    state.now.zero_();
  }
}

}  // namespace colossal::nn
