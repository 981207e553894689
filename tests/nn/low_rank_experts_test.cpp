// Low-rank adapters of experts: values and gradients equal those of plain loops over experts whose matrices are
// W + s B A.
#include "colossal/nn/low_rank_experts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "colossal/nn/adapter.h"
#include "colossal/nn/experts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/activation.h"
#include "support/dense_experts.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::low_rank_experts_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kHidden = 6, kFfn = 5, kTokens = 14, kRank = 3;
constexpr double kScale = 0.5;
constexpr int64_t kTerms = kTokens * kHidden * kFfn * kRank;
constexpr const char *kUp = "mlp.experts.gate_up", *kDown = "mlp.experts.down";

using Wrap = Parameters::Options::ProductOf;

ExpertOptions mixture(int64_t count, int64_t used) {
  return {.count = count,
          .used = used,
          .ffn = kFfn,
          .activation = [](const at::Tensor& x) { return ops::swiglu(x); },
          .gated = true,
          .deviation = 0.7,
          .down_deviation = 0.7};
}

Wrap low_rank(const LowRank& options = {.rank = kRank, .scale = kScale}) {
  return [options](std::shared_ptr<const Product> product, const Parameter& weight, Parameters& parameters) {
    return weight.stack ? with_low_rank(std::move(product), weight, parameters, options) : product;
  };
}

/// A product that is another object than the plain one, so that each expert has its own.
class OwnProduct final : public Product {
 public:
  explicit OwnProduct(std::shared_ptr<const Product> inner) : inner_(std::move(inner)) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    return inner_->forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return inner_->backward(dy, saved, wanted);
  }

 private:
  std::shared_ptr<const Product> inner_;
};

std::shared_ptr<const Product> of_each_expert(std::shared_ptr<const Product> product, const Parameter&, Parameters&) {
  return std::make_shared<OwnProduct>(std::move(product));
}

/// A layer whose experts have adapters, and its input.
struct Layer {
  Layer(const ExpertOptions& options, std::vector<Wrap> wraps, bool trains_weights = false)
      : options(options),
        parameters(
            {}, {.dtype = at::kDouble,
                 .seed = 11,
                 .treatment =
                     [=](const std::string& name) { return Treatment{.trains = trains_weights || is_low_rank(name)}; },
                 .products = std::move(wraps)}),
        make(parameters),
        experts(make.experts("mlp", kHidden, options)) {
    step.training = true;
    auto generator = at::detail::createCPUGenerator(5);
    x = at::randn({2, kTokens / 2, kHidden}, generator, at::TensorOptions(at::kDouble)).requires_grad_();
    g = at::randn({2, kTokens / 2, kHidden}, generator, at::TensorOptions(at::kDouble));
  }
  void draw_b() {
    const at::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(6);
    for (const std::string stack : {kUp, kDown}) value(stack + ".adapter_b").normal_(0, 1, generator);
  }
  at::Tensor& value(const std::string& name) { return parameters.at(name).value; }
  /// Returns W + s B A of all experts, with autograd.
  at::Tensor merged(const std::string& stack) {
    return value(stack + ".weight") + kScale * at::matmul(value(stack + ".adapter_b"), value(stack + ".adapter_a"));
  }
  test::ExpertWeights weights() { return {value("mlp.router.weight"), merged(kUp), {}, merged(kDown), {}, {}}; }
  std::vector<at::Tensor> gradients(const at::Tensor& y) {
    torch::autograd::backward({(y * g).sum()}, {});
    std::vector<at::Tensor> all{x.grad().clone()};
    x.mutable_grad().reset();
    for (Parameter& p : parameters) {
      all.push_back(p.value.grad().defined() ? p.value.grad().clone() : at::zeros_like(p.value));
      p.value.mutable_grad().reset();
    }
    return all;
  }
  void expect_as_loops() {
    const at::Tensor y = experts->forward(x, step);
    const std::vector<at::Tensor> got = gradients(y);
    const at::Tensor want = test::dense_experts(x.flatten(0, 1), weights(), options, true).y.view_as(y);
    test::expect_close(y.detach(), want.detach(), kTerms, "y");
    const std::vector<at::Tensor> wanted = gradients(want);
    ASSERT_EQ(got.size(), 1 + parameters.size());
    for (size_t i = 0; i < got.size(); ++i) test::expect_close(got[i], wanted[i], kTerms, concat("gradient ", i));
    const at::NoGradGuard no_grad;
    test::expect_close(experts->forward(x, ForwardContext()), want.detach(), kTerms, "y without gradients");
  }

  ExpertOptions options;
  Parameters parameters;
  SerialLayers make;
  std::unique_ptr<Experts> experts;
  ForwardContext step;
  at::Tensor x, g;
};

TEST(LowRankExperts, EqualPlainLoops) {
  for (const bool trains_weights : {false, true})
    for (const std::vector<Wrap>& wraps :
         {std::vector<Wrap>{low_rank()}, std::vector<Wrap>{of_each_expert, low_rank()}})
      for (const Recompute recompute : {Recompute::None, Recompute::Selective}) {
        Layer layer(mixture(5, 2), wraps, trains_weights);
        layer.step.recompute = recompute;
        layer.draw_b();
        EXPECT_EQ(layer.value("mlp.experts.gate_up.adapter_a").sizes(), (at::IntArrayRef{5, kRank, kHidden}));
        EXPECT_EQ(layer.value("mlp.experts.gate_up.adapter_b").sizes(), (at::IntArrayRef{5, 2 * kFfn, kRank}));
        EXPECT_EQ(layer.value("mlp.experts.down.adapter_b").sizes(), (at::IntArrayRef{5, kHidden, kRank}));
        EXPECT_NO_THROW(layer.expect_as_loops()) << trains_weights << wraps.size();
      }
}

TEST(LowRankExperts, GiveGradientsToExpertsWithoutTokens) {
  Layer layer(mixture(6, 1), {low_rank()});
  layer.draw_b();
  {
    const at::NoGradGuard no_grad;
    layer.value("mlp.router.weight").zero_();  // all scores are equal, so every token goes to expert 0
  }
  EXPECT_NO_THROW(layer.expect_as_loops());
  torch::autograd::backward({layer.experts->forward(layer.x, layer.step).sum()}, {});
  for (const char* name : {"mlp.experts.down.adapter_a", "mlp.experts.down.adapter_b"}) {
    const at::Tensor gradient = layer.value(name).grad();
    ASSERT_TRUE(gradient.defined());
    EXPECT_EQ(gradient.narrow(0, 1, 5).abs().max().item<double>(), 0);
    EXPECT_GT(gradient[0].abs().max().item<double>(), 0);
  }
}

TEST(LowRankExperts, ChangeNothingWhenTheyAreNew) {
  Fp8Products fp8({});
  const Wrap in_fp8 = [&](std::shared_ptr<const Product> product, const Parameter& weight, Parameters& parameters) {
    return fp8.wrap(std::move(product), weight, parameters);
  };
  for (const std::vector<Wrap>& inside : {std::vector<Wrap>{}, {of_each_expert}, {in_fp8}}) {
    std::vector<Wrap> with = inside;
    with.push_back(low_rank());
    Layer plain(mixture(5, 2), inside), adapted(mixture(5, 2), with);
    EXPECT_TRUE(
        at::equal(adapted.experts->forward(adapted.x, adapted.step), plain.experts->forward(plain.x, plain.step)));
  }
  Layer adapted(mixture(5, 2), {low_rank()});
  const at::Tensor a = adapted.value("mlp.experts.down.adapter_a");
  EXPECT_LE(a.abs().max().item<double>(), 1 / std::sqrt(static_cast<double>(kFfn)));
  EXPECT_FALSE(at::equal(a[0], a[1])) << "each expert has its own";
}

TEST(LowRankExperts, CanBeSwitchedOff) {
  const auto off = std::make_shared<bool>(false);
  const Wrap switched = [&](std::shared_ptr<const Product> product, const Parameter& weight, Parameters& parameters) {
    return with_switch(low_rank()(product, weight, parameters), product, off);
  };
  Layer layer(mixture(5, 2), {switched}), plain(mixture(5, 2), {});
  layer.draw_b();
  EXPECT_NO_THROW(layer.expect_as_loops());
  *off = true;
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(layer.experts->forward(layer.x, layer.step), plain.experts->forward(plain.x, plain.step)));
  }
  EXPECT_THAT(test::thrown_message([&] { layer.experts->forward(layer.x, layer.step); }),
              HasSubstr("a pass with gradients must use the adapters"));
}

// A is sharded like the inputs of the experts, B like their outputs, and both like the experts.
TEST(LowRankExperts, ShardLikeTheStack) {
  Parameters parameters(
      tensor::MeshCoordinates({{"data", 2, 0, tensor::BatchSplit::Rows}, {"expert", 2, 1}, {"tensor", 2, 0}}),
      {.products = {low_rank()}});
  auto spec = tensor::ShardSpec::split({3, 8, 6}, 0, {"expert"});
  spec.splits[1] = tensor::ShardSpec::split({3, 8, 6}, 1, {"tensor"}, {{4}, {4}}).splits[1];
  Parameter& stack = parameters.add("stack.weight", spec, Init::ones(), true);
  stack.is_stack = stack.hidden_matrix = true;
  grouped_product(parameters, stack);
  const Parameter &a = parameters.at("stack.adapter_a"), &b = parameters.at("stack.adapter_b");
  EXPECT_TRUE(a.is_stack && b.is_stack && a.hidden_matrix && b.hidden_matrix && a.is_added && b.is_added);
  EXPECT_EQ(a.value.sizes(), (at::IntArrayRef{2, kRank, 6}));
  EXPECT_EQ(b.value.sizes(), (at::IntArrayRef{2, 4, kRank}));
  EXPECT_EQ(a.spec.gradient_axes, (std::vector<std::string>{"data", "tensor"}));
  EXPECT_EQ(b.spec.gradient_axes, (std::vector<std::string>{"data"}));
  EXPECT_EQ(a.value[1].abs().max().item<double>(), 0) << "padding, which has no expert";
}

TEST(LowRankExperts, RefuseWhatPeftRefusesAndWrongOrders) {
  const auto message = [](std::vector<Wrap> wraps) {
    return test::thrown_message([&] { Layer(mixture(2, 1), std::move(wraps)); });
  };
  EXPECT_THAT(message({low_rank({.rank = 2, .dropout = 0.1})}), HasSubstr("must have no dropout, as in peft: got 0.1"));
  EXPECT_THAT(message({low_rank({.rank = 2, .magnitudes = true})}), HasSubstr("must have no magnitudes, as in peft"));
  EXPECT_THAT(message({low_rank({.rank = 7})}), HasSubstr("must be between 1 and 6, its smaller side: got 7"));
  Layer inside_out(mixture(2, 1), {low_rank({.rank = 2}), of_each_expert});
  EXPECT_THAT(test::thrown_message([&] { inside_out.experts->forward(inside_out.x, inside_out.step); }),
              HasSubstr("must be outside of all wrappers of single experts"));
  const Wrap first_alone = [](std::shared_ptr<const Product> product, const Parameter& weight, Parameters& parameters) {
    return weight.stack && weight.stack_index == 0 ? with_low_rank(std::move(product), weight, parameters, {.rank = 1})
                                                   : product;
  };
  EXPECT_THAT(message({first_alone}),
              HasSubstr("adapters must be of all experts of mlp.experts.gate_up.weight or of none"));
}

}  // namespace
}  // namespace colossal::nn::low_rank_experts_test
