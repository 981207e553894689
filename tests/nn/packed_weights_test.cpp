// Packed weights that also keep their values: passes with gradients use the values, and packing again uses the current
// ones.
#include "colossal/nn/packed_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "colossal/base/error.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/nn/linear.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::packed_weights_test {
namespace {

using testing::HasSubstr;

struct Layer {
  explicit Layer(const WeightPacking& packing)
      : layers(packing),
        parameters({}, {.products = {[this](auto product, const Parameter& w, Parameters&) {
                          return layers.wrap(std::move(product), w);
                        }}}),
        weight(parameters.add("layer.weight", tensor::ShardSpec::whole({32, 16}), Init::normal(1), true)),
        product(parameters.product_for(weight, {std::shared_ptr<void>(), &serial_product()})) {}
  at::Tensor operator()(const at::Tensor& x) const { return linear(*product, x, weight.value, {}, 32, nullptr); }
  at::Tensor without_gradients(const at::Tensor& x) const {
    const at::NoGradGuard no_grad;
    return (*this)(x);
  }
  PackedWeights layers;
  Parameters parameters;
  Parameter& weight;
  std::shared_ptr<const Product> product;
};

at::Tensor input() { return at::linspace(-1, 1, 4 * 16, at::kFloat).view({4, 16}); }

TEST(PackedWeights, ComputeGradientsFromKeptValues) {
  for (const int64_t bits : {0, 8}) {
    Layer layer({.bits = bits, .group = 16, .keeps_values = true});
    layer.layers.repack();
    const at::Tensor x = input().requires_grad_();
    const at::Tensor y = layer(x);
    EXPECT_TRUE(at::equal(y, serial_product().forward(x.detach(), layer.weight.value.detach(), {}, 32, nullptr)));
    y.sum().backward();
    test::expect_close(layer.weight.value.grad(), x.detach().sum(0).expand({32, 16}), 16, "dW");
    test::expect_close(x.grad(), layer.weight.value.detach().sum(0).expand({4, 16}), 64, "dx");
  }
}

TEST(PackedWeights, RepackCurrentValues) {
  for (const int64_t bits : {0, 8}) {
    const WeightPacking packing{.bits = bits, .group = 16, .keeps_values = true};
    Layer layer(packing), fresh(packing);
    layer.layers.repack();
    const at::Tensor before = layer.without_gradients(input());
    for (Layer* one : {&layer, &fresh}) {
      const at::NoGradGuard no_grad;
      one->weight.value.copy_(at::linspace(-2, 3, 32 * 16, at::kFloat).view({32, 16}));
    }
    EXPECT_TRUE(at::equal(layer.without_gradients(input()), before)) << "packed before the change";
    layer.layers.release();
    EXPECT_TRUE(at::equal(layer.without_gradients(input()),
                          serial_product().forward(input(), layer.weight.value.detach(), {}, 32, nullptr)));
    layer.layers.repack();
    fresh.layers.repack();
    const at::Tensor after = layer.without_gradients(input());
    EXPECT_TRUE(at::equal(after, fresh.without_gradients(input())));
    EXPECT_FALSE(at::equal(after, before));
    EXPECT_GT(layer.layers.bytes(), 0);
  }
}

TEST(PackedWeights, RefuseGradientsAndRepackWithoutValues) {
  Layer layer({});
  EXPECT_THAT(test::thrown_message([&] { layer(input()); }),
              HasSubstr("got a pass that needs gradients; keep the values (WeightPacking::keeps_values)"));
  for (const bool releases : {false, true})
    EXPECT_THAT(test::thrown_message([&] { releases ? layer.layers.release() : layer.layers.repack(); }),
                HasSubstr("cannot be packed again: set WeightPacking::keeps_values"));
}

/// A stack of three matrices [32, 16] without memory, whose products are packed.
struct PackedStack {
  explicit PackedStack(const WeightPacking& packing)
      : layers(packing),
        parameters(tensor::MeshCoordinates(),
                   {.without_memory = true,
                    .products = {[this](std::shared_ptr<const Product> product, const Parameter& weight, Parameters&) {
                      return layers.wrap(std::move(product), weight);
                    }}}),
        stack(parameters.add("w", tensor::ShardSpec::whole({3, 32, 16}), Init::normal(1), true)) {
    stack.is_stack = stack.hidden_matrix = true;
    product = grouped_product(parameters, stack);
  }
  void load(const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    tensor::Held held;
    layers.loaded(stack).write_into(held);
    held.value.copy_(values);
    layers.finish();
  }
  at::Tensor operator()(const at::Tensor& x) const {
    const at::NoGradGuard no_grad;
    return product->forward(x, stack.value, {}, {1, 3, 4}, nullptr);
  }
  PackedWeights layers;
  Parameters parameters;
  Parameter& stack;
  std::shared_ptr<const GroupedProduct> product;
};

TEST(PackedWeights, TakeQuantizedValuesOfEachExpert) {
  const at::Tensor values = at::linspace(-2, 3, 3 * 32 * 16, at::kFloat).view({3, 32, 16});
  PackedStack rounded({.bits = 8, .group = 16}), taken({}), some({});
  rounded.load(values);
  for (int64_t e = 0; e < 3; ++e) {
    const ops::GroupCodes codes = ops::round_to_codes(values[e], {.bits = 8, .group = 16});
    EXPECT_TRUE(taken.layers.take(concat("w.", e), codes));
    EXPECT_EQ(e == 1 && some.layers.take("w.1", codes), e == 1);
  }
  EXPECT_FALSE(taken.layers.take("w", ops::round_to_codes(values[0], {.bits = 8, .group = 16})));
  ops::GroupCodes lowest = ops::round_to_codes(values[0], {.bits = 8, .group = 16});
  lowest.codes[1][2] = 0;  // -128, which kernels do not multiply
  EXPECT_FALSE(some.layers.take("w.0", lowest));
  EXPECT_TRUE(at::equal(taken(input()), rounded(input())));
  EXPECT_EQ(taken.layers.bytes(), rounded.layers.bytes());
  some.load(values);  // packs the matrices that were not taken
  const at::Tensor got = some(input()), want = rounded(input());
  EXPECT_TRUE(at::equal(got.narrow(0, 1, 2), want.narrow(0, 1, 2)));
  EXPECT_FALSE(at::equal(got, want));
}

TEST(PackedWeights, TakeRowsOfEachExpert) {
  const at::Tensor values = at::linspace(-2, 3, 3 * 32 * 16, at::kFloat).view({3, 32, 16});
  for (const WeightPacking& packing : {WeightPacking{}, {.bits = 8, .group = 16}, {.bits = 8, .floating = true}}) {
    PackedStack loaded(packing), taken(packing), some(packing);
    loaded.load(values);
    for (int64_t e = 0; e < 3; ++e) {
      EXPECT_TRUE(taken.layers.take(concat("w.", e), {values[e].narrow(0, 0, 5), values[e].narrow(0, 5, 27)}));
      EXPECT_FALSE(some.layers.take(concat("w.", e), {values[e].to(at::kDouble)}));
    }
    EXPECT_FALSE(taken.layers.take("w", {values[0]}));
    EXPECT_TRUE(at::equal(taken(input()), loaded(input())));
    EXPECT_EQ(taken.layers.bytes(), loaded.layers.bytes());
  }
  PackedStack keeping({.keeps_values = true});
  EXPECT_FALSE(keeping.layers.take("w.0", {values[0]}));
}

TEST(PackedWeights, LoadPostponedParametersAtTheirFirstUse) {
  const at::Tensor values = at::linspace(-2, 3, 3 * 32 * 16, at::kFloat).view({3, 32, 16});
  PackedStack loaded({}), filled({}), taken({}), early({});
  loaded.load(values);
  int loads = 0;
  EXPECT_TRUE(filled.layers.take_later("w", [&] {
    ++loads;
    tensor::Held held;
    filled.layers.loaded(filled.stack).write_into(held);
    held.value.copy_(values);
  }));
  for (PackedStack* stack : {&taken, &early})
    EXPECT_TRUE(stack->layers.take_later("w", [&, stack] {
      ++loads;
      for (int64_t e = 0; e < 3; ++e) EXPECT_TRUE(stack->layers.take(concat("w.", e), {values[e]}));
    }));
  EXPECT_EQ(loads, 0);
  EXPECT_EQ(filled.layers.bytes(), 0);
  EXPECT_TRUE(early.layers.load_next());
  EXPECT_EQ(loads, 1);
  for (const PackedStack* stack : {&filled, &taken, &early}) {
    EXPECT_TRUE(at::equal((*stack)(input()), loaded(input())));
    EXPECT_TRUE(at::equal((*stack)(input()), loaded(input())));
    EXPECT_EQ(stack->layers.bytes(), loaded.layers.bytes());
  }
  EXPECT_EQ(loads, 3);
  for (PackedStack* stack : {&filled, &taken, &early}) EXPECT_FALSE(stack->layers.load_next());
}

TEST(PackedWeights, LoadAPostponedParameterAgainAfterAnError) {
  const at::Tensor values = at::linspace(-2, 3, 3 * 32 * 16, at::kFloat).view({3, 32, 16});
  PackedStack loaded({}), postponed({});
  loaded.load(values);
  bool fails = true;
  EXPECT_TRUE(postponed.layers.take_later("w", [&] {
    require(!fails, "test", "no memory");
    for (int64_t e = 0; e < 3; ++e) postponed.layers.take(concat("w.", e), {values[e]});
  }));
  EXPECT_THROW(postponed(input()), Error);
  fails = false;
  EXPECT_TRUE(at::equal(postponed(input()), loaded(input())));
}

TEST(PackedWeights, ViewTablesUntilTheyAreCopied) {
  const at::Tensor values = at::linspace(-2, 3, 32 * 16, at::kFloat).view({32, 16});
  Layer loaded({}), used({}), early({});
  for (Layer* layer : {&loaded, &used, &early}) layer->weight.looked_up = true;
  tensor::Held held;
  loaded.layers.loaded(loaded.weight).write_into(held);
  held.value.copy_(values);
  loaded.layers.finish();
  for (Layer* layer : {&used, &early}) {
    EXPECT_TRUE(layer->layers.view(layer->weight, {values}));
    EXPECT_EQ(layer->weight.value.data_ptr(), values.data_ptr());
  }
  EXPECT_TRUE(early.layers.load_next());
  for (Layer* layer : {&used, &early}) {
    EXPECT_TRUE(at::equal(layer->without_gradients(input()), loaded.without_gradients(input())));
    EXPECT_NE(layer->weight.value.data_ptr(), values.data_ptr());
    EXPECT_TRUE(at::equal(layer->weight.value.detach(), values));
    EXPECT_FALSE(layer->layers.load_next());
  }
}

TEST(PackedWeights, RefuseViewsThatTheyCannotUse) {
  const at::Tensor values = at::zeros({32, 16}), half = values.narrow(0, 0, 16);
  Layer table({}), plain({}), keeping({.keeps_values = true}), rounded({.bits = 8, .group = 16});
  for (Layer* layer : {&table, &keeping, &rounded}) layer->weight.looked_up = true;
  EXPECT_FALSE(table.layers.view(table.weight, {half, half}));
  EXPECT_FALSE(table.layers.view(table.weight, {values.to(at::kHalf)}));
  EXPECT_FALSE(table.layers.view(table.weight, {at::zeros({16, 32}).t()}));
  for (Layer* layer : {&plain, &keeping, &rounded}) EXPECT_FALSE(layer->layers.view(layer->weight, {values}));
}

TEST(PackedWeights, RefuseToPostponeWhatTheyDoNotReadLater) {
  const auto load = [] { ADD_FAILURE() << "loaded"; };
  PackedStack rounded({.bits = 8, .group = 16}), keeping({.keeps_values = true}), plain({}), table({});
  table.stack.looked_up = true;
  EXPECT_FALSE(rounded.layers.take_later("w", load));
  EXPECT_FALSE(keeping.layers.take_later("w", load));
  EXPECT_FALSE(table.layers.take_later("w", load));
  EXPECT_FALSE(plain.layers.take_later("another", load));
  EXPECT_FALSE(plain.layers.load_next());
}

/// Counts the reads that are announced while it lives (tensor/read_scope.h).
class AnnouncedReads {
 public:
  AnnouncedReads() {
    count = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
  }
  ~AnnouncedReads() { at::removeCallback(handle_); }
  static inline thread_local int count = 0;

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& fn) {
    count += std::string_view(fn.name()) == "colossal::read";
    return nullptr;
  }
  at::CallbackHandle handle_;
};

// Under ZeRO 3 each announced read may gather the stack.
TEST(PackedWeights, ReadAStackOnceToRepackIt) {
  for (const int64_t bits : {0, 8}) {
    const WeightPacking packing{.bits = bits, .group = 16, .keeps_values = true};
    PackedStack packed(packing), fresh(packing);
    const at::Tensor values = at::linspace(-2, 3, 3 * 32 * 16, at::kFloat).view({3, 32, 16});
    packed.load(values);
    fresh.load(values.cos());
    {
      const at::NoGradGuard no_grad;
      packed.stack.value.copy_(values.cos());
    }
    const AnnouncedReads reads;
    packed.layers.repack();
    EXPECT_EQ(AnnouncedReads::count, 1);
    EXPECT_TRUE(at::equal(packed(input()), fresh(input())));
  }
}

// The stack may be in a released chunk when a deferred gradient is computed, and only ranks with rows would gather it.
TEST(PackedWeights, MakeGradientsOfStacksWithoutTheirValues) {
  PackedWeights layers({.keeps_values = true});
  Parameters parameters({}, {.products = {[&](auto product, const Parameter& w, Parameters&) {
                               return layers.wrap(std::move(product), w);
                             }}});
  Parameter& stack =
      parameters.add("stack", tensor::ShardSpec::split({2, 32, 16}, 0, {}, {{2, 1}}), Init::normal(1), true);
  const auto product = grouped_product(parameters, stack);
  GroupedProduct::Saved saved;
  const at::Tensor x = input(), dy = at::ones({4, 32});
  product->forward(x, stack.value.detach(), {}, {4, 4}, &saved);
  EXPECT_TRUE(saved.x.is_same(x));
  for (const Product::Saved& own : saved.of_expert) EXPECT_FALSE(own.x.defined()) << "rows are kept once";
  saved.weight = at::Tensor();
  const at::Tensor sum = product->weight_gradient(dy, saved, {4, 4}, at::ones({2, 32, 16}));
  test::expect_close(sum[0], x.sum(0).expand({32, 16}) + 1, 16, "dW");
  EXPECT_TRUE(at::equal(sum[1], at::ones({32, 16})));
}

}  // namespace
}  // namespace colossal::nn::packed_weights_test
