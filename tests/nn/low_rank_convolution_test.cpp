// Low-rank adapters of convolutions, against the convolution with the merged weight, in fp64.
#include "colossal/nn/low_rank_convolution.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/low_rank.h"
#include "support/thrown_message.h"

namespace colossal::nn::low_rank_convolution_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kOut = 6, kIn = 4, kRank = 2, kRows = 2, kHeight = 5, kWidth = 3;

std::shared_ptr<const Product> serial() { return {std::shared_ptr<void>(), &serial_product()}; }

at::Tensor sines(at::IntArrayRef sizes, double step) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::kDouble) * step).sin_().view(sizes);
}

/// A convolution with an adapter, and the same with one weight, W + s B A.
struct Layer {
  explicit Layer(const LowRank& options, int64_t side = 3)
      : parameters({}, {.dtype = at::kDouble,
                        .treatment = [](const std::string& name) { return Treatment{.trains = is_low_rank(name)}; }}),
        weight(
            parameters.add("conv.weight", tensor::ShardSpec::whole({kOut, kIn, side, side}), Init::normal(0.3), true)),
        x(sines({kRows, kHeight * kWidth, kIn}, 0.7).requires_grad_()) {
    product = with_low_rank(serial(), weight, parameters, options);
    const at::NoGradGuard no_grad;
    b().copy_(sines({kOut, kRank}, 0.9));
  }
  at::Tensor& a() { return parameters.at("conv.adapter_a").value; }
  at::Tensor& b() { return parameters.at("conv.adapter_b").value; }
  at::Tensor merged(double scale) {
    return weight.value + scale * at::matmul(b(), a().flatten(1)).view_as(weight.value);
  }

  Parameters parameters;
  Parameter& weight;
  at::Tensor x;
  std::shared_ptr<const Product> product;
};

/// Returns the gradients of x, A and B of a loss of y.
std::vector<at::Tensor> gradients(Layer& layer, const at::Tensor& y) {
  for (at::Tensor* leaf : {&layer.x, &layer.a(), &layer.b()}) leaf->mutable_grad() = at::Tensor();
  (y * sines(y.sizes(), 0.3)).sum().backward();
  return {layer.x.grad(), layer.a().grad(), layer.b().grad()};
}

void expect_merged(const ops::Window& window, int64_t side, const Unary& before) {
  Layer layer({.rank = kRank, .scale = 1.5}, side);
  ASSERT_EQ(layer.a().sizes(), at::IntArrayRef({kRank, kIn, side, side}));
  const Pictures pictures{{kHeight, kWidth}, window};
  const at::Tensor bias = sines({kOut}, 1.1);
  const auto wanted = [&] { return convolved(before ? before(layer.x) : layer.x, layer.merged(1.5), bias, pictures); };
  const auto got = [&] { return convolved(*layer.product, layer.x, layer.weight.value, bias, kOut, pictures, before); };
  EXPECT_TRUE(at::allclose(got(), wanted(), 1e-12, 1e-12));
  const auto of_got = gradients(layer, got()), of_wanted = gradients(layer, wanted());
  for (size_t i = 0; i < of_got.size(); ++i) {
    ASSERT_TRUE(of_got[i].defined()) << i;
    EXPECT_TRUE(at::allclose(of_got[i], of_wanted[i], 1e-12, 1e-12)) << i;
  }
  EXPECT_FALSE(layer.weight.value.grad().defined());
}

TEST(LowRankConvolution, ComputesAndTrainsAsTheMergedWeight) { expect_merged(ops::Window::same(3), 3, {}); }

TEST(LowRankConvolution, FollowsTheStrideOfItsLayer) {
  ops::Window window = ops::Window::same(3);
  window.stride = 2;
  expect_merged(window, 3, {});
}

TEST(LowRankConvolution, ReadsOnePixelForAKernelOfOne) { expect_merged(ops::Window::same(1), 1, {}); }

TEST(LowRankConvolution, ComputesAFunctionBeforeItAgainInBackward) {
  expect_merged(ops::Window::same(3), 3, [](const at::Tensor& x) { return at::silu(x); });
}

TEST(LowRankConvolution, BeginsAsTheLayerWithoutIt) {
  Layer layer({.rank = kRank});
  const at::NoGradGuard no_grad;
  layer.b().zero_();
  const Pictures pictures{{kHeight, kWidth}, ops::Window::same(3)};
  EXPECT_TRUE(at::equal(convolved(*layer.product, layer.x, layer.weight.value, {}, kOut, pictures),
                        convolved(serial_product(), layer.x, layer.weight.value, {}, kOut, pictures)));
}

TEST(LowRankConvolution, RefusesWhatItDoesNotCompute) {
  EXPECT_THAT(test::thrown_message([] { Layer layer({.rank = kRank, .dropout = 0.1}); }),
              HasSubstr("the adapter of conv.weight, a convolution or a layer between blocks, must have no dropout"));
  EXPECT_THAT(test::thrown_message([] { Layer layer({.rank = kRank, .magnitudes = true}); }),
              HasSubstr("magnitudes and 1 part(s)"));
  EXPECT_THAT(test::thrown_message([] { Layer layer({.rank = 5}); }), HasSubstr("between 1 and 4"));
}

}  // namespace
}  // namespace colossal::nn::low_rank_convolution_test
