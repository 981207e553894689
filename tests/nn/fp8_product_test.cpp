// Linear layers in fp8 on one process: compared with products of operands quantised in this file. Also their scales,
// state and kept tensors.
#include "colossal/nn/fp8_product.h"

#include <gmock/gmock.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/products/fp8.h"
#include "ops/compare.h"
#include "support/parity.h"
#include "support/ranks_values.h"
#include "support/thrown_message.h"

namespace colossal::nn::fp8_product_test {
namespace {

using ops::expect_close;
using ops::Fp8;
using ops::normal;
using ops::Tensors;

const std::vector<at::ScalarType> kTypes{at::kDouble, at::kFloat, at::kBFloat16};  // fp8 with fp16 is refused
constexpr auto kDelayed = Fp8Recipe::Scaling::Delayed;

/// Returns the nearest number of the format after scaling, by plain arithmetic in fp64.
at::Tensor quantised(const at::Tensor& x, Fp8 format, double scale) {
  const int bits = format == Fp8::E4m3 ? 3 : 2, lowest = format == Fp8::E4m3 ? -6 : -14;
  const double most = format == Fp8::E4m3 ? 448 : 57344;
  at::Tensor result = x.detach().to(at::kDouble).contiguous().clone();
  auto* values = result.data_ptr<double>();
  for (int64_t i = 0; i < result.numel(); ++i) {
    const double scaled = std::clamp(values[i] * scale, -most, most);
    const double step = std::ldexp(1, std::max(scaled == 0 ? lowest : std::ilogb(scaled), lowest) - bits);
    values[i] = std::nearbyint(scaled / step) * step / scale;
  }
  return result;
}

double magnitude(const at::Tensor& x) { return x.detach().abs().max().item<double>(); }

double scale_from(double amax, Fp8 format, const Fp8Recipe& recipe) {
  const double scale = (format == Fp8::E4m3 ? 448 : 57344) / std::max(amax, 1e-12) / std::exp2(recipe.margin);
  return recipe.power_of_two ? std::exp2(std::floor(std::log2(scale))) : scale;
}

/// One layer with its leaves and an incoming gradient.
struct Layer {
  Layer(Fp8Products& fp8, at::ScalarType type, int64_t rows = 5, const std::string& name = "layer.weight")
      : weight{.name = name, .value = leaf({11, 7}, 2, type), .hidden_matrix = true},
        bias(leaf({11}, 3, type)),
        x(leaf({rows, 7}, 1, type)),
        dy(normal({rows, 11}, 4, type).to(type)),
        product(fp8.wrap({std::shared_ptr<void>(), &serial_product()}, weight, parameters)) {}
  static at::Tensor leaf(at::IntArrayRef shape, uint64_t seed, at::ScalarType type) {
    return normal(shape, seed, type).to(type).requires_grad_();
  }
  at::Tensor forward(DeferredGradients* deferred = nullptr, const Unary& before = {}) const {
    return linear(*product, x, weight.value, bias, 11, deferred, before);
  }
  Tensors values_and_gradients(DeferredGradients* deferred = nullptr, const Unary& before = {}) {
    for (at::Tensor* t : {&x, &weight.value, &bias}) t->mutable_grad() = at::Tensor();
    const at::Tensor y = forward(deferred, before);
    y.backward(dy);
    return {y.detach(), x.grad(), weight.value.grad(), bias.grad()};
  }
  Parameters parameters{{}, {}};  // hold the history
  Parameter weight;
  at::Tensor bias, x, dy;
  std::shared_ptr<const Product> product;
};

/// Computes the layer's values and gradients in fp64 from operands that are quantised first.
Tensors by_hand(const Layer& l, double x_scale, double weight_scale, double dy_scale) {
  const auto x = quantised(l.x, Fp8::E4m3, x_scale), w = quantised(l.weight.value, Fp8::E4m3, weight_scale),
             dy = quantised(l.dy, Fp8::E5m2, dy_scale);
  return {x.mm(w.t()) + l.bias.detach().to(at::kDouble), dy.mm(w), dy.t().mm(x), l.dy.to(at::kDouble).sum(0)};
}

void expect_all_close(const Tensors& actual, const Tensors& expected, at::ScalarType type, double intermediates = 0) {
  for (size_t i = 0; i < expected.size(); ++i)
    expect_close(actual[i], expected[i], type, 11, "value or gradient " + std::to_string(i), intermediates);
}

void expect_equal(const Tensors& actual, const Tensors& expected) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(test::same_bits(actual[i], expected[i])) << i;
}

TEST(Fp8Product, EqualsProductsOfDequantisedOperands) {
  for (const auto type : kTypes)
    for (const Fp8Recipe& recipe : {Fp8Recipe{}, Fp8Recipe{.margin = 2}, Fp8Recipe{.power_of_two = false}}) {
      Fp8Products fp8(recipe);
      Layer layer(fp8, type);
      const auto scale = [&](const at::Tensor& t, Fp8 format) { return scale_from(magnitude(t), format, recipe); };
      const auto expected =
          by_hand(layer, scale(layer.x, Fp8::E4m3), scale(layer.weight.value, Fp8::E4m3), scale(layer.dy, Fp8::E5m2));
      // Scales are fp32 numbers, so results after a division by one are not more exact than fp32. If the scale is not a
      // power of two, both operands are also rounded to the dtype.
      expect_all_close(layer.values_and_gradients(), expected,
                       recipe.power_of_two || type != at::kDouble ? type : at::kFloat, recipe.power_of_two ? 0 : 2);
    }
}

TEST(Fp8Product, KeepsEightBitOperandsExactly) {
  Fp8Products fp8({});
  Layer layer(fp8, at::kDouble);
  const at::NoGradGuard no_grad;
  for (at::Tensor* t : {&layer.x, &layer.weight.value, &layer.dy}) t->copy_((*t * 2).round());
  {
    const at::AutoGradMode grad(true);
    const auto found = layer.values_and_gradients();
    const at::Tensor x = layer.x.detach(), w = layer.weight.value.detach();
    expect_equal(found, {at::linear(x, w, layer.bias.detach()), layer.dy.mm(w), layer.dy.t().mm(x), layer.dy.sum(0)});
  }
}

TEST(Fp8Product, KeepsOneBytePerInputElement) {
  Fp8Products fp8({});
  for (const auto type : kTypes) {
    Layer layer(fp8, type);
    Product::Saved saved;
    layer.product->forward(layer.x.detach(), layer.weight.value.detach(), {}, 11, &saved);
    EXPECT_EQ(saved.x.numel() * static_cast<int64_t>(saved.x.element_size()), layer.x.numel());
    EXPECT_EQ(saved.x.storage().nbytes(), static_cast<size_t>(layer.x.numel()));
    EXPECT_TRUE(saved.weight.is_alias_of(layer.weight.value));
    // The graph must not keep another reference either.
    layer.x = layer.x.detach().clone();
    const at::Tensor y = layer.forward();
    EXPECT_EQ(layer.x.use_count(), 1u);
    const at::Tensor plain = linear(layer.x, layer.weight.value, layer.bias);
    EXPECT_EQ(layer.x.use_count(), 2u);
  }
}

// Selective recomputation keeps neither the activation nor its quantized values. Quantising it again gives the same
// values.
TEST(Fp8Product, FreesRecomputedInput) {
  for (const auto scaling : {Fp8Recipe::Scaling::Current, kDelayed})
    for (const bool defers : {false, true}) {
      Fp8Products fp8({.scaling = scaling});
      Layer layer(fp8, at::kFloat);
      int calls = 0;
      const Unary twice = [&](const at::Tensor& x) {
        ++calls;
        return x * 2;
      };
      DeferredGradients deferred;
      Tensors found;
      const auto tasks = [&] {
        if (defers) return deferred.collect([&] { found = layer.values_and_gradients(&deferred, twice); });
        found = layer.values_and_gradients(&deferred, twice);
        return DeferredGradients::Tasks{};
      }();
      for (const auto& task : tasks) task();
      EXPECT_EQ(calls, defers ? 3 : 2);
      found[2] = layer.weight.value.grad().clone();
      const at::Tensor dx = found[1] / 2;
      {
        const at::NoGradGuard no_grad;
        layer.x *= 2;
      }
      const auto expected = layer.values_and_gradients();
      expect_equal({found[0], dx, found[2]}, {expected[0], expected[1], expected[2]});
    }
}

TEST(Fp8Product, DefersWeightGradientsBitwise) {
  Fp8Products fp8({.scaling = kDelayed});
  Layer layer(fp8, at::kFloat);
  const auto expected = layer.values_and_gradients();
  DeferredGradients deferred;
  const auto tasks = deferred.collect([&] { layer.values_and_gradients(&deferred); });
  EXPECT_FALSE(layer.weight.value.grad().defined());
  for (const auto& task : tasks) task();
  EXPECT_TRUE(test::same_bits(layer.weight.value.grad(), expected[2]));
}

/// An independent, simple implementation of delayed scaling.
struct Delayed {
  Fp8Recipe recipe;
  std::vector<double> history{}, now{};
  double scale(double amax, Fp8 format) {
    now.push_back(amax);
    const auto first = history.end() - std::min<std::ptrdiff_t>(recipe.history, std::ssize(history));
    return scale_from(first == history.end() ? amax : *std::max_element(first, history.end()), format, recipe);
  }
  void end_step() {
    history.push_back(*std::max_element(now.begin(), now.end()));
    now.clear();
  }
};

/// Returns magnitudes that grow, shrink and jump, so that a scale from the past saturates some of them.
double size_at(int step, int micro_batch) { return std::exp2(step * 5 % 7 - 3) * (1 + micro_batch); }

void follow_history(const Fp8Recipe& recipe, at::ScalarType exactness) {
  Fp8Products fp8(recipe);
  Layer layer(fp8, at::kDouble);
  Delayed x{recipe}, weight{recipe}, dy{recipe};
  ops::RankReduction alone;
  bool saturated = false;
  for (int step = 0; step < 9; ++step) {
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      {
        const at::NoGradGuard no_grad;
        layer.x.copy_(normal({5, 7}, 10 + step) * size_at(step, micro_batch));
        layer.weight.value.copy_(normal({11, 7}, 30 + step) / size_at(step, 0));
        layer.dy.copy_(normal({5, 11}, 50 + step) * 1e-4 * size_at(step + 3, micro_batch));
      }
      const double x_scale = x.scale(magnitude(layer.x), Fp8::E4m3);
      saturated |= x_scale * magnitude(layer.x) > 448;
      const double weight_scale = weight.scale(magnitude(layer.weight.value), Fp8::E4m3);
      const auto expected = by_hand(layer, x_scale, weight_scale, dy.scale(magnitude(layer.dy), Fp8::E5m2));
      expect_all_close(layer.values_and_gradients(), expected, exactness);
    }
    for (Delayed* d : {&x, &weight, &dy}) d->end_step();
    fp8.end_step(alone);
  }
  EXPECT_TRUE(saturated);
}

TEST(Fp8Product, ComputesDelayedScalesFromHistory) {
  follow_history({.scaling = kDelayed, .history = 3, .margin = 1}, at::kDouble);
  follow_history({.scaling = kDelayed, .history = 3, .power_of_two = false}, at::kFloat);
}

TEST(Fp8Product, IgnoresPassesWithoutGradMode) {
  Fp8Products fp8({.scaling = kDelayed});
  Layer layer(fp8, at::kFloat);
  {
    const at::NoGradGuard no_grad;
    layer.forward();
  }
  EXPECT_EQ(magnitude(fp8.states()[0]->now), 0);
  layer.forward();
  EXPECT_EQ(fp8.states()[0]->now[0].item<double>(), magnitude(layer.x));
}

TEST(Fp8Product, PropagatesNonFiniteValuesWithoutHistory) {
  Fp8Products fp8({.scaling = kDelayed, .history = 2});
  Layer layer(fp8, at::kFloat);
  ops::RankReduction alone;
  layer.values_and_gradients();
  fp8.end_step(alone);
  const auto expected = layer.values_and_gradients();
  fp8.end_step(alone);
  const at::Tensor x = layer.x;
  layer.x = (x.detach() / at::zeros({})).requires_grad_();  // infinities
  EXPECT_TRUE(layer.values_and_gradients()[0].isnan().all().item<bool>());
  fp8.end_step(alone);
  layer.x = x;
  expect_equal(layer.values_and_gradients(), expected);
}

// The state is saved and loaded into another object, which then continues with the same bits. An object without the
// state does not.
TEST(Fp8Product, ResumesBitwiseFromState) {
  const auto steps = [](Fp8Products& fp8, Layer& layer, int first, int last) {
    ops::RankReduction alone;
    Tensors found;
    for (int step = first; step < last; ++step) {
      {
        const at::NoGradGuard no_grad;
        layer.x.copy_(normal({5, 7}, step) * size_at(step, 0));
      }
      found = layer.values_and_gradients();
      fp8.end_step(alone);
    }
    return found;
  };
  // no powers of two, so that every difference of scales is visible
  const Fp8Recipe recipe{.scaling = kDelayed, .history = 4, .power_of_two = false};
  Fp8Products all(recipe), before(recipe), after(recipe), anew(recipe);
  Layer all_layer(all, at::kFloat), before_layer(before, at::kFloat), after_layer(after, at::kFloat),
      anew_layer(anew, at::kFloat);
  const auto expected = steps(all, all_layer, 0, 6);
  steps(before, before_layer, 0, 4);
  ASSERT_EQ(before.states().size(), 1u);
  EXPECT_EQ(after.states()[0]->name, "layer.weight.fp8_history");
  EXPECT_EQ(after.states()[0]->history.sizes(), (at::IntArrayRef{3, 4}));
  after.states()[0]->history.copy_(before.states()[0]->history);
  expect_equal(steps(after, after_layer, 4, 6), expected);
  EXPECT_FALSE(steps(anew, anew_layer, 5, 6)[0].equal(expected[0]));
  EXPECT_TRUE(Fp8Products({}).states().empty());
}

TEST(Fp8Product, WrapsOnlyLinearLayersOfBlocks) {
  for (const auto& [shape, up] :
       {std::pair{test::tiny_gpt2(), "up"}, {test::tiny_llama(), "gate_up"}, {test::tiny_vit(), "up"}}) {
    Fp8Products fp8({.scaling = kDelayed});
    Parameters parameters({}, {.products = {[&](auto product, const Parameter& weight, Parameters& parameters) {
                                 return fp8.wrap(std::move(product), weight, parameters);
                               }}});
    SerialLayers layers(parameters);
    const models::Model model = models::make_model(shape, layers);
    std::vector<std::string> names, expected;
    for (const auto& state : fp8.states()) names.push_back(state->name);
    for (int64_t i = 0; i < shape.layers; ++i)
      for (const std::string& layer :
           {std::string("attention.qkv"), std::string("attention.out"), concat("mlp.", up), std::string("mlp.down")})
        expected.push_back(concat("blocks.", i, ".", layer, ".weight.fp8_history"));
    EXPECT_THAT(names, testing::UnorderedElementsAreArray(expected)) << shape.architecture->name;
  }
}

// A rank of a pipeline also declares the layers of other stages, but has no state for them.
TEST(Fp8Product, KeepsNoStateForOtherStages) {
  Fp8Products fp8({.scaling = kDelayed});
  Parameters parameters(
      tensor::MeshCoordinates({{"pipeline", 2, 0}}),
      {.stages = [](const std::string& name) { return std::vector<int>{name.starts_with("first") ? 0 : 1}; },
       .products = {[&](auto product, const Parameter& weight, Parameters& parameters) {
         return fp8.wrap(std::move(product), weight, parameters);
       }}});
  SerialLayers layers(parameters);
  const auto first = layers.expand("first", 4, 4, {}), second = layers.expand("second", 4, 4, {});
  Parameter& stack = parameters.add("stack", tensor::ShardSpec::whole({3, 8, 4}), Init::normal(1), true);
  stack.is_stack = stack.hidden_matrix = true;
  grouped_product(parameters, stack);
  ASSERT_EQ(fp8.states().size(), 1u);
  EXPECT_EQ(fp8.states()[0]->name, "first.weight.fp8_history");
  EXPECT_EQ(fp8.states()[0]->spec.stages, std::vector<int>{0});
  EXPECT_EQ(fp8.states()[0]->spec.shape, (std::vector<int64_t>{3, 16}));
}

/// Trains a stack of three experts [8, 4] with the given rows of each, and returns its history [3, 3, steps].
at::Tensor history_of_experts(const std::vector<ops::GroupEnds>& steps) {
  Fp8Products fp8({.scaling = kDelayed, .history = 4});
  Parameters parameters({}, {.seed = 3, .products = {[&](auto product, const Parameter& weight, Parameters& all) {
                                          return fp8.wrap(std::move(product), weight, all);
                                        }}});
  Parameter& stack = parameters.add("stack", tensor::ShardSpec::whole({3, 8, 4}), Init::normal(1), true);
  stack.is_stack = stack.hidden_matrix = true;
  const auto product = grouped_product(parameters, stack);
  ops::RankReduction alone;
  for (size_t step = 0; step < steps.size(); ++step) {
    const int64_t rows = steps[step].back();
    GroupedProduct::Saved saved;
    const at::NoGradGuard no_grad;
    const at::Tensor x = normal({rows, 4}, 7).to(at::kFloat) * std::exp2(static_cast<double>(step)),
                     dy = normal({rows, 8}, 8).to(at::kFloat), weight = stack.value.detach();
    product->forward(x, weight, {}, steps[step], &saved);
    saved.weight = weight;
    product->input_gradient(dy, saved, steps[step]);
    fp8.end_step(alone);
  }
  EXPECT_EQ(fp8.states().size(), 1u) << "one buffer for the stack";
  EXPECT_EQ(fp8.states()[0]->name, "stack.fp8_history");
  return fp8.states()[0]->history.clone();
}

TEST(Fp8Product, KeepsTheHistoryOfExpertsWithoutTokens) {
  const ops::GroupEnds all{2, 4, 6};
  const at::Tensor before = history_of_experts({all, all}),
                   after = history_of_experts({all, all, {2, 2, 4}, {0, 0, 2}}),
                   full = history_of_experts({all, all, all, all});
  ASSERT_EQ(before.sizes(), (at::IntArrayRef{3, 3, 4}));
  EXPECT_TRUE(at::equal(after[1], before[1])) << "no token in two steps";
  EXPECT_FALSE(at::equal(full[1], before[1]));
  // The other experts have the steps in which they computed, and none of zeros in between.
  EXPECT_TRUE(at::equal(after[0].narrow(1, 1, 2), before[0].narrow(1, 0, 2))) << "one step more";
  EXPECT_TRUE(at::equal(after[2].narrow(1, 2, 2), before[2].narrow(1, 0, 2))) << "two steps more";
  EXPECT_GT(after[0].narrow(1, 0, 3).min().item<double>(), 0);
  EXPECT_EQ(after[0].select(1, 3).max().item<double>(), 0);
  EXPECT_GT(after[2].min().item<double>(), 0);
}

TEST(Fp8Product, RefusesEmptyHistory) {
  EXPECT_EQ(test::thrown_message([] { Fp8Products({.history = 0}); }),
            "[precision] the amax history of fp8 must hold at least 1 step: got 0");
}

}  // namespace
}  // namespace colossal::nn::fp8_product_test
