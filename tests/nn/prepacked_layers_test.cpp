// Packed weights that also keep their values: passes with gradients use the values, and packing again uses the current
// ones.
#include "colossal/nn/prepacked_layers.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/nn/linear.h"
#include "support/ranks_values.h"
#include "support/tolerance.h"

namespace colossal::nn::prepacked_layers_test {
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
  PrepackedLayers layers;
  Parameters parameters;
  Parameter& weight;
  std::shared_ptr<const Product> product;
};

at::Tensor input() { return at::linspace(-1, 1, 4 * 16, at::kFloat).view({4, 16}); }

TEST(PrepackedLayers, ComputeGradientsFromKeptValues) {
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

TEST(PrepackedLayers, RepackCurrentValues) {
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

TEST(PrepackedLayers, RefuseGradientsAndRepackWithoutValues) {
  Layer layer({});
  EXPECT_THAT(test::thrown_message([&] { layer(input()); }),
              HasSubstr("got a pass that needs gradients; keep the values (WeightPacking::keeps_values)"));
  for (const bool releases : {false, true})
    EXPECT_THAT(test::thrown_message([&] { releases ? layer.layers.release() : layer.layers.repack(); }),
                HasSubstr("cannot be packed again: set WeightPacking::keeps_values"));
}

}  // namespace
}  // namespace colossal::nn::prepacked_layers_test
