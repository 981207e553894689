// Convolutions of hidden states of one process. Layouts of several ranks: tests/parallel/convolution_parity_test.cpp.
#include "colossal/nn/convolution.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/nn/features.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/recompute.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/group_norm.h"
#include "colossal/tensor/flops.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::convolution_test {
namespace {

using test::expect_close;
using testing::HasSubstr;

const Pictures kSame{{4, 5}, ops::Window::same(3)};
const LinearOptions kKernel{.deviation = 0.2, .taps = {3, 3}};

const Unary kActivation = [](const at::Tensor& x) { return at::silu(x); };

struct Layer {
  Parameters parameters{{}, {.dtype = at::kDouble}};
  SerialLayers make{parameters};
};

TEST(PictureConvolution, EqualsTheConvolutionOfPlanes) {
  Layer l;
  const auto first = l.make.picture_embedding("first", 3, 6, 3, 0.2);
  const auto up = l.make.expand("up", 6, 8, kKernel);
  const auto down = l.make.contract("down", 8, 6, {.bias = false, .deviation = 0.2, .taps = {3, 3}});
  const auto half = l.make.dense("half", 6, 6, kKernel);
  const auto outputs = l.make.outputs("outputs", 6, 2, {.deviation = 0.2, .taps = {1, 1}});
  const at::NoGradGuard no_grad;
  for (Parameter& p : l.parameters) p.value.copy_(at::arange(p.value.numel()).sin().mul(0.2).view(p.value.sizes()));
  const auto value = [&](const char* name) { return l.parameters.at(name).value; };
  const at::Tensor planes = at::arange(120, at::kDouble).cos().view({2, 3, 4, 5});
  at::Tensor want = at::conv2d(planes, value("first.weight"), value("first.bias"), 1, 1);
  want = at::conv2d(want, value("up.weight"), value("up.bias"), 1, 1);
  want = at::conv2d(at::silu(want), value("down.weight"), {}, 1, 1);
  want = at::conv2d(at::constant_pad_nd(want, {0, 1, 0, 1}), value("half.weight"), value("half.bias"), 2);
  want = at::conv2d(want, value("outputs.weight"), value("outputs.bias"));
  const Pictures halves{kSame.size, {.stride = 2, .bottom = 1, .right = 1}};
  const at::Tensor x = first->forward(planes, kSame.window);
  const at::Tensor small = half->forward(down->forward(up->forward(x, kSame).map(kActivation, {}), kSame), halves);
  const at::Tensor got = outputs->forward(small, {{2, 2}, {}}, {});
  EXPECT_NO_THROW(expect_close(got, want.permute({0, 2, 3, 1}).flatten(1, 2), 54, "outputs"));
}

TEST(PictureConvolution, KeepsTheInputOfAPendingFunctionAlone) {
  Layer l;
  const auto down = l.make.contract("down", 4, 3, kKernel);
  const at::Tensor leaf = at::arange(80, at::kDouble).sin().view({1, 20, 4}).requires_grad_();
  const at::Tensor seed = at::arange(60, at::kDouble).cos().view({1, 20, 3});
  std::vector<at::Tensor> gradients;
  for (const auto recompute : {Recompute::None, Recompute::Selective}) {
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> kept;
    int calls = 0;
    const auto activation = [&](const at::Tensor& x) {
      const at::Tensor y = at::silu(x);
      kept.emplace(y.storage().getWeakStorageImpl());
      ++calls;
      return y;
    };
    const at::Tensor y =
        down->forward(Inside{leaf * 2}.map(activation, {.training = true, .recompute = recompute}), kSame);
    EXPECT_EQ(kept->expired(), recompute == Recompute::Selective);
    y.backward(seed);
    EXPECT_EQ(calls, recompute == Recompute::Selective ? 2 : 1);
    for (const char* name : {"down.weight", "down.bias"}) {
      gradients.push_back(l.parameters.at(name).value.grad().clone());
      l.parameters.at(name).value.mutable_grad() = at::Tensor();
    }
    gradients.push_back(leaf.grad().clone());
    leaf.mutable_grad() = at::Tensor();
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(gradients[i], gradients[i + 3])) << i;
}

TEST(PictureConvolution, MakesOnlyTheGradientsThatAreWanted) {
  Layer l;
  const auto up = l.make.expand("up", 3, 4, kKernel);
  const at::Tensor x = at::arange(60, at::kDouble).sin().view({1, 20, 3});
  at::Tensor &weight = l.parameters.at("up.weight").value, &bias = l.parameters.at("up.bias").value;
  const double once = 2.0 * 20 * 4 * 27;
  for (const auto& [of_x, of_weight, of_bias] :
       {std::tuple{true, false, false}, {false, true, false}, {false, false, true}, {true, true, true}}) {
    weight.requires_grad_(of_weight), bias.requires_grad_(of_bias);
    const at::Tensor leaf = x.clone().requires_grad_(of_x);
    at::Tensor read = leaf * 1;
    const c10::weak_intrusive_ptr<c10::StorageImpl> kept(read.storage().getWeakStorageImpl());
    const tensor::FlopCount count;
    const at::Tensor y = up->forward(read, kSame).tensor;
    read = at::Tensor();
    EXPECT_EQ(kept.expired(), !of_weight) << "only the gradient of the weight reads x";
    y.sum().backward();
    EXPECT_EQ(count.total(), once * (1 + of_x + of_weight));
    EXPECT_EQ(leaf.grad().defined(), of_x);
    EXPECT_EQ(weight.grad().defined(), of_weight);
    EXPECT_EQ(bias.grad().defined(), of_bias);
    weight.mutable_grad() = bias.mutable_grad() = at::Tensor();
  }
}

TEST(PictureConvolution, StaysTheSameInARecomputedBlock) {
  Layer l;
  const auto norm = l.make.group_norm("norm", 6, {.groups = 3}, Place::Outside);
  const auto up = l.make.expand("up", 6, 8, kKernel);
  const auto down = l.make.contract("down", 8, 6, kKernel);
  const Unary block = [&](const at::Tensor& x) {
    return x + down->forward(up->forward(norm->forward(x), kSame).map(kActivation, {.training = true}), kSame);
  };
  std::vector<at::Tensor> all;
  for (const bool again : {false, true}) {
    const at::Tensor x = at::arange(120, at::kDouble).sin().view({1, 20, 6}).requires_grad_();
    const at::Tensor y = again ? recomputed(block, x) : block(x);
    y.square().sum().backward();
    all.push_back(y.detach());
    all.push_back(x.grad());
    for (Parameter& p : l.parameters) {
      all.push_back(p.value.grad());
      p.value.mutable_grad() = at::Tensor();
    }
  }
  for (size_t i = 0; i < all.size() / 2; ++i) EXPECT_TRUE(at::equal(all[i], all[i + all.size() / 2])) << i;
}

// A model of 16 bits may end in outputs of fp32.
TEST(PictureConvolution, ComputesOutputsInTheDtypeOfTheirInput) {
  Parameters parameters({}, {.dtype = at::kBFloat16});
  SerialLayers make(parameters);
  const auto outputs = make.outputs("outputs", 6, 2, kKernel);
  const at::Tensor y = outputs->forward(at::ones({1, 20, 6}), kSame, {});
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  y.sum().backward();
  EXPECT_EQ(parameters.at("outputs.weight").value.grad().scalar_type(), at::kBFloat16);
}

TEST(PictureConvolution, TakesAnEmptyBatch) {
  Layer l;
  const auto up = l.make.expand("up", 3, 4, kKernel);
  const at::Tensor x = at::empty({0, 20, 3}, at::kDouble).requires_grad_(), y = up->forward(x, kSame).tensor;
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 20, 4}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST(PictureConvolution, RefusesAnotherNumberOfPixels) {
  Layer l;
  const auto up = l.make.expand("up", 3, 4, kKernel);
  EXPECT_THAT(test::thrown_message([&] { up->forward(at::ones({1, 21, 3}, at::kDouble), kSame); }),
              HasSubstr("[model] pictures of 4 x 5 must be [B, 20, features]: got [1, 21, 3]"));
}

}  // namespace
}  // namespace colossal::nn::convolution_test
