// A mixture of experts on one rank against plain loops, in fp64.
#include "colossal/nn/experts.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/base/metric.h"
#include "colossal/nn/expert_choice.h"
#include "colossal/nn/expert_dispatch.h"
#include "colossal/nn/expert_ranks.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/activation.h"
#include "support/dense_experts.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::experts_test {
namespace {

using nn::ExpertOptions;
using testing::HasSubstr;

constexpr int64_t kHidden = 6, kFfn = 5, kTokens = 14;

ExpertOptions mixture(int64_t count, int64_t used) {
  return {.count = count,
          .used = used,
          .ffn = kFfn,
          .activation = [](const at::Tensor& x) { return ops::swiglu(x); },
          .gated = true,
          .deviation = 0.7,
          .down_deviation = 0.7};
}

/// The layer, its inputs and what a training step collects.
struct Layer {
  explicit Layer(const ExpertOptions& options, at::ScalarType dtype = at::kDouble)
      : options(options), parameters({}, {.dtype = dtype, .seed = 11}), make(parameters) {
    experts = make.experts("mlp", kHidden, options);
    reports = std::make_shared<nn::ReportAccumulator>(make.reports(), at::kCPU);
    step.training = true;
    step.parts.set(nn::ReportsOfStep{reports});
    auto generator = at::detail::createCPUGenerator(5);
    x = at::randn({2, kTokens / 2, kHidden}, generator, at::TensorOptions().dtype(dtype)).requires_grad_();
    g = at::randn({2, kTokens / 2, kHidden}, generator, at::TensorOptions().dtype(dtype));
  }
  at::Tensor value(const std::string& name) {
    for (nn::Parameter& p : parameters)
      if (p.name == "mlp." + name) return p.value;
    for (nn::Buffer& b : parameters.buffers())
      if (b.name == "mlp." + name) return b.value;
    return {};
  }
  ExpertWeights weights() {
    const std::string up = options.gated ? "experts.gate_up" : "experts.up";
    return {value("router.weight"),       value(up + ".weight"),      value(up + ".bias"),
            value("experts.down.weight"), value("experts.down.bias"), value("router.bias")};
  }
  at::Tensor rows() const { return x.flatten(0, 1); }
  /// Returns the gradients of x and of all parameters, and resets them.
  std::vector<at::Tensor> gradients(const at::Tensor& loss) {
    torch::autograd::backward({loss}, {});
    std::vector<at::Tensor> all{x.grad().clone()};
    x.mutable_grad().reset();
    for (nn::Parameter& p : parameters) {
      all.push_back(p.value.grad().defined() ? p.value.grad().clone() : at::zeros_like(p.value));
      p.value.mutable_grad().reset();
    }
    return all;
  }
  double reported(const std::string& name) {
    for (const auto& d : make.reports().declared())
      if (d.name == "mlp." + name) return reports->values()[d.first].item<double>();
    return std::nan("");
  }

  ExpertOptions options;
  nn::Parameters parameters;
  nn::SerialLayers make;
  std::unique_ptr<nn::Experts> experts;
  std::shared_ptr<nn::ReportAccumulator> reports;
  nn::ForwardContext step;
  at::Tensor x, g;
};

/// Compares outputs, losses and all gradients of the layer with the loops.
void expect_as_loops(Layer& layer) {
  layer.reports->begin(1);
  const at::Tensor y = layer.experts->forward(layer.x, layer.step);
  const std::vector<at::Tensor> got = layer.gradients((y * layer.g).sum());
  const DenseExperts want = dense_experts(layer.rows(), layer.weights(), layer.options, true);
  expect_close(y.flatten(0, 1).detach(), want.y.detach(), kHidden * kFfn, "y");
  if (layer.options.capacity == 0) {  // a pass without gradients takes another way, and drops nothing
    const at::NoGradGuard no_grad;
    const at::Tensor beside = at::ones_like(layer.x);
    const at::Tensor inferred = layer.experts->forward(layer.x, nn::ForwardContext(), [&] { return beside; });
    expect_close(inferred.flatten(0, 1), want.y.detach() + 1, kHidden * kFfn, "y without gradients");
  }
  const at::Tensor loss = (want.y * layer.g.flatten(0, 1)).sum() + want.balance + want.z;
  const std::vector<at::Tensor> gradients = layer.gradients(loss);
  for (size_t i = 0; i < got.size(); ++i)
    expect_close(got[i], gradients[i], kTokens * kHidden * kFfn, concat("gradient ", i));
  if (layer.options.balance_loss != 0) {
    EXPECT_NEAR(layer.reported("balance"), want.balance.item<double>(), 1e-14);
  }
}

TEST(Experts, EqualPlainLoopsInEveryVariant) {
  std::vector<ExpertOptions> variants;
  const auto add = [&](ExpertOptions o, const auto& change) {
    change(o);
    variants.push_back(o);
  };
  add(mixture(5, 2), [](ExpertOptions&) {});
  add(mixture(6, 3), [](ExpertOptions& o) { o.normalize = false, o.scale = 2.5; });
  add(mixture(1, 1), [](ExpertOptions& o) { o.balance_loss = 0.1; });
  add(mixture(4, 4), [](ExpertOptions& o) { o.score = ExpertOptions::Score::Sigmoid, o.linear_bias = true; });
  add(mixture(8, 3), [](ExpertOptions& o) { o.groups = 4, o.groups_used = 2, o.balance_loss = 0.3, o.z_loss = 0.2; });
  add(mixture(8, 2), [](ExpertOptions& o) {
    o.groups = 2, o.groups_used = 1, o.bias = true, o.score = ExpertOptions::Score::Sigmoid, o.balance_loss = 0.3;
  });
  add(mixture(4, 2), [](ExpertOptions& o) { o.capacity = 0.6, o.balance_loss = 0.3; });
  add(mixture(5, 2), [](ExpertOptions& o) {
    o.capacity = 1.1, o.balance_over = ExpertOptions::BalanceOver::Rank, o.balance_loss = 0.3;
  });
  add(mixture(5, 2), [](ExpertOptions& o) {
    o.gated = false, o.linear_bias = true, o.activation = [](const at::Tensor& x) { return ops::gelu(x); };
  });
  for (size_t i = 0; i < variants.size(); ++i) {
    SCOPED_TRACE(i);
    Layer layer(variants[i]);
    if (variants[i].bias) layer.value("router.bias").copy_(at::linspace(-0.2, 0.2, variants[i].count));
    if (variants[i].linear_bias) {
      const at::NoGradGuard no_grad;
      layer.weights().up_bias.fill_(0.3);
      layer.weights().down_bias.fill_(-0.2);
    }
    EXPECT_NO_THROW(expect_as_loops(layer));
  }
}

TEST(Experts, GiveGradientsToExpertsWithoutTokens) {
  ExpertOptions options = mixture(6, 1);
  options.normalize = false;  // a single weight divided by itself has no gradient
  Layer layer(options);
  {
    const at::NoGradGuard no_grad;
    layer.value("router.weight").zero_();  // all scores are equal, so every token goes to expert 0
  }
  EXPECT_NO_THROW(expect_as_loops(layer));
  const at::Tensor y = layer.experts->forward(layer.x, layer.step);
  torch::autograd::backward({y.sum()}, {});
  const at::Tensor gradient = layer.value("experts.down.weight").grad();
  ASSERT_TRUE(gradient.defined());
  EXPECT_EQ(gradient.narrow(0, 1, 5).abs().max().item<double>(), 0);
  EXPECT_GT(gradient[0].abs().max().item<double>(), 0);
}

TEST(Experts, ChooseTheLowerOfEqualExpertsAndKeepNaN) {
  const at::Tensor scores = at::tensor({0.5, 0.5, 0.25, 0.5}).unsqueeze(0);
  EXPECT_TRUE(at::equal(nn::chosen_experts(scores, {}, {.count = 4, .used = 2}), at::tensor({0, 1}).unsqueeze(0)));
  Layer layer(mixture(4, 2));
  {
    const at::NoGradGuard no_grad;
    layer.x.select(0, 1).select(0, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  }
  const at::Tensor y = layer.experts->forward(layer.x, layer.step);
  EXPECT_TRUE(y[1][2].isnan().all().item<bool>());
  EXPECT_FALSE(y[0].isnan().any().item<bool>());
}

// transformers scores left-out experts as 0, which would beat every expert here.
TEST(Experts, LeaveOutOtherGroupsOfNegativeScores) {
  const ExpertOptions options{
      .count = 6, .used = 2, .score = ExpertOptions::Score::Sigmoid, .groups = 3, .groups_used = 1};
  const at::Tensor scores = at::full({1, 6}, 0.25, at::kDouble);
  const at::Tensor bias = at::tensor({-4.0, -4.0, -2.0, -2.5, -3.0, -3.0}, at::kDouble).to(at::kFloat);
  EXPECT_TRUE(at::equal(nn::chosen_experts(scores, bias, options), at::tensor({2, 3}, at::kLong).view({1, 2})));
}

/// Returns the weighted sums of the experts' results, which are the tokens `x` [T, H] scaled for each expert.
at::Tensor combined(const at::Tensor& x, const at::Tensor& experts, const at::Tensor& weights, int64_t count) {
  const nn::ExpertDispatch way(experts, {}, count, std::make_shared<const nn::ExpertRanks>());
  const at::Tensor rows = way.dispatch(x).clone();
  int64_t first = 0;
  for (int64_t e = 0; e < count; ++e) {
    const int64_t end = way.ends()[static_cast<size_t>(e)];
    rows.narrow(0, first, end - first).mul_(1.1 + 0.3 * static_cast<double>(e));
    first = end;
  }
  return way.combine(rows, weights);
}

TEST(Experts, AddResultsOfATokenIndependentlyOfOthers) {
  constexpr int64_t kCount = 5, kAll = 37, kFrom = 11, kSome = 9;
  auto generator = at::detail::createCPUGenerator(7);
  const auto options = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor x = at::randn({kAll, 19}, generator, options), weights = at::rand({kAll, 3}, generator, options);
  const at::Tensor order = at::rand({kAll, kCount}, generator, options).argsort(int64_t{1});
  const at::Tensor experts = std::get<0>(order.narrow(1, 0, 3).sort(1));
  const auto part = [](const at::Tensor& t) { return t.narrow(0, kFrom, kSome); };
  EXPECT_TRUE(
      at::equal(combined(part(x), part(experts), part(weights), kCount), part(combined(x, experts, weights, kCount))));
}

TEST(Experts, StayFiniteIfAllSigmoidsOfATokenAreZero) {
  const ExpertOptions options{.count = 3, .used = 2, .score = ExpertOptions::Score::Sigmoid};
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor logits = at::full({2, 3}, -2000, at::TensorOptions().dtype(dtype));
    logits.select(0, 1).zero_();
    const at::Tensor inputs = logits.requires_grad_();
    const at::Tensor scores = nn::scores_of(inputs, options);
    ASSERT_EQ(scores[0].max().item<double>(), 0) << "underflow";
    const at::Tensor experts = nn::chosen_experts(scores.detach(), {}, options);
    const at::Tensor shares = nn::shares_of(scores, options), weights = nn::weights_of(scores, experts, options);
    EXPECT_EQ(shares[0].abs().max().item<double>(), 0);
    EXPECT_EQ(weights[0].abs().max().item<double>(), 0);
    EXPECT_NO_THROW(expect_close(shares[1].detach(), at::full_like(shares[1].detach(), 1.0 / 3), 3, "shares"));
    EXPECT_TRUE(at::equal(weights[1], at::full_like(weights[1], 0.5)));
    torch::autograd::backward({(shares.select(1, 0) + weights.select(1, 0)).sum()}, {});
    EXPECT_TRUE(inputs.grad().isfinite().all().item<bool>());
  }
}

/// Gives each of 12 tokens a feature of its own, which one expert prefers. Expert e gets `tokens[e]` of them.
void direct_tokens(Layer& layer, const std::vector<int64_t>& tokens) {
  const at::NoGradGuard no_grad;
  layer.value("router.weight").zero_();
  at::Tensor x = at::zeros({2, 6, kHidden}, at::kDouble), rows = x.flatten(0, 1);
  int64_t row = 0;
  for (size_t e = 0; e < tokens.size(); ++e) {
    const auto expert = static_cast<int64_t>(e);
    layer.value("router.weight")[expert][expert].fill_(1.5);
    for (int64_t i = 0; i < tokens[e]; ++i) rows[row++][expert].fill_(1);
  }
  layer.x = x.requires_grad_();
}

double balance_with(const ExpertOptions& options, const std::vector<int64_t>& tokens,
                    std::vector<double>* computed = nullptr) {
  Layer layer(options);
  direct_tokens(layer, tokens);
  layer.reports->begin(1);
  layer.experts->forward(layer.x, layer.step);
  for (const auto& d : layer.make.reports().declared()) {
    const at::Tensor values = layer.reports->values().narrow(0, d.first, d.size);
    const double* from = values.const_data_ptr<double>();
    if (d.name == "mlp.load") {
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), from)) << "assignments before dropping";
    }
    if (d.name == "mlp.computed" && computed) computed->assign(from, from + d.size);
  }
  return layer.reported("balance");
}

// Each score is e / (e + 3) for the preferred expert and 1 / (e + 3) for the others, with e = exp(1.5).
TEST(Experts, HaveTheBalanceLossOfItsStrengthAtEvenLoad) {
  ExpertOptions options = mixture(4, 1);
  options.balance_loss = 0.25;
  const double limit = 4 * std::numeric_limits<double>::epsilon() * std::sqrt(12.0);  // of sums over 12 tokens
  EXPECT_NEAR(balance_with(options, {3, 3, 3, 3}), 0.25, limit);
  const double best = std::exp(1.5) / (std::exp(1.5) + 3), other = (1 - best) / 3;
  EXPECT_NEAR(balance_with(options, {12, 0, 0, 0}), 0.25 * 4 * best, limit);
  const double first = (9 * best + 3 * other) / 12, second = (3 * best + 9 * other) / 12;
  EXPECT_NEAR(balance_with(options, {9, 3, 0, 0}), 0.25 * 4 * (0.75 * first + 0.25 * second), limit);
}

// With a limit of one token an expert, the shares of what is left would be even.
TEST(Experts, CountTheBalanceBeforeTokensAreDropped) {
  ExpertOptions options = mixture(4, 1);
  options.balance_loss = 0.25;
  std::vector<double> computed;
  const double want = balance_with(options, {6, 3, 2, 1}, &computed);
  EXPECT_EQ(computed, (std::vector<double>{6, 3, 2, 1}));
  options.capacity = 0.25;
  EXPECT_EQ(balance_with(options, {6, 3, 2, 1}, &computed), want);
  EXPECT_EQ(computed, (std::vector<double>{1, 1, 1, 1}));
  EXPECT_GT(want, 0.25);
}

TEST(Experts, HaveTheGradientOfFiniteDifferences) {
  ExpertOptions options = mixture(5, 2);
  options.balance_loss = 0.4;
  options.z_loss = 0.1;
  Layer layer(options);
  const at::Tensor router = layer.value("router.weight");
  const auto losses = [&] {
    layer.reports->begin(1);
    const at::Tensor y = layer.experts->forward(layer.x, layer.step);
    return std::pair(y, layer.reported("balance") + layer.reported("z"));
  };
  // Backward through zeros of y leaves the losses alone.
  const at::Tensor gradient = layer.gradients((losses().first * 0).sum())[1];
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;  // errors: kStep^2 of the third derivative, and 1e-16 / kStep of rounding
  for (int64_t i = 0; i < 4; ++i) {
    at::Tensor element = router[i][i];
    element.add_(kStep);
    const double above = losses().second;
    element.sub_(2 * kStep);
    const double below = losses().second;
    element.add_(kStep);
    EXPECT_NEAR(gradient[i][i].item<double>(), (above - below) / (2 * kStep), 1e-9);
  }
}

TEST(Experts, DropNothingInEvaluation) {
  ExpertOptions options = mixture(4, 2);
  options.capacity = 0.25;
  Layer layer(options);
  layer.step.training = false;
  const at::Tensor y = layer.experts->forward(layer.x, layer.step);
  expect_close(y.flatten(0, 1).detach(), dense_experts(layer.rows(), layer.weights(), options, false).y.detach(),
               kHidden * kFfn, "y");
  layer.step.training = true;
  EXPECT_GT((layer.experts->forward(layer.x, layer.step) - y).abs().max().item<double>(), 1e-3);
}

TEST(Experts, KeepTheChoiceOfTheFirstPass) {
  Layer layer(mixture(5, 2));
  const auto choices = std::make_shared<nn::KeptChoices>();
  layer.step.parts.set(nn::BlockChoices{choices});
  choices->begin_pass();
  const at::Tensor first = layer.experts->forward(layer.x, layer.step);
  const auto choice = [&] {
    const at::Tensor scores = at::softmax(at::matmul(layer.rows(), layer.value("router.weight").t()), -1);
    return nn::chosen_experts(scores, {}, layer.options);
  };
  const at::Tensor experts = choice();
  {
    const at::NoGradGuard no_grad;
    layer.value("router.weight").neg_();
  }
  EXPECT_FALSE(at::equal(choice(), experts)) << "without the kept choice other experts would be used";
  choices->begin_pass();
  layer.step.is_recomputed = true;
  const double load = layer.reported("load");
  const at::Tensor second = layer.experts->forward(layer.x, layer.step);
  EXPECT_EQ(layer.reported("load"), load) << "loads count once";
  expect_close(second.flatten(0, 1).detach(),
               dense_experts(layer.rows(), layer.weights(), layer.options, true, experts).y.detach(), kHidden * kFfn,
               "y");
}

TEST(Experts, MoveBalanceBiasesUntilTheLoadIsEven) {
  ExpertOptions options = mixture(4, 1);
  options.bias = true;
  options.bias_rate = 0.02;
  Layer layer(options);
  {
    const at::NoGradGuard no_grad;
    layer.value("router.weight").select(0, 3).add_(layer.x.mean(at::IntArrayRef{0, 1}) * 3);  // expert 3 is preferred
  }
  const auto one_step = [&](bool skipped) {
    layer.reports->begin(1);
    layer.experts->forward(layer.x, layer.step);
    nn::Reported reported{.skipped = skipped};
    const at::Tensor values = layer.reports->values();
    for (const auto& d : layer.make.reports().declared()) {
      const double* from = values.const_data_ptr<double>() + d.first;
      reported.values.emplace_back(from, from + d.size);
    }
    nn::ExpertMetrics metrics;
    layer.experts->end_step(reported, metrics);
    return metrics;
  };
  const double skewed = one_step(true).expert_load;
  EXPECT_EQ(layer.value("router.bias").abs().max().item<float>(), 0) << "skipped steps do not move them";
  for (int i = 0; i < 60; ++i) one_step(false);
  EXPECT_LT(one_step(false).expert_load, skewed);
  EXPECT_LE(one_step(false).expert_load, 1.5) << "14 tokens on 4 experts: 4 or 5 tokens on the busiest";
  EXPECT_EQ(layer.value("router.bias").scalar_type(), at::kFloat);
}

// Ten loads of 1/3 add up to more than 10/3, so that a rounded mean is above each of them.
TEST(Experts, LeaveBalanceBiasesAtEvenLoad) {
  ExpertOptions options = mixture(10, 1);
  options.bias = true;
  options.bias_rate = 0.5;
  Layer layer(options);
  const auto moved_by = [&](const std::vector<double>& load) {
    nn::Reported reported{.micro_batches = 3};
    for (const auto& d : layer.make.reports().declared())
      reported.values.push_back(d.size == 10 ? load : std::vector<double>(d.size));
    nn::ExpertMetrics metrics;
    layer.value("router.bias").zero_();
    layer.experts->end_step(reported, metrics);
    return layer.value("router.bias").clone();
  };
  std::vector<double> load(10, 1.0 / 3);
  EXPECT_EQ(moved_by(load).abs().max().item<float>(), 0);
  load[2] = 2.0 / 3, load[7] = 0;
  at::Tensor want = at::zeros({10});
  want[2] = -0.5, want[7] = 0.5;
  EXPECT_TRUE(at::equal(moved_by(load), want));
}

TEST(Experts, AddTheirMetrics) {
  nn::ExpertMetrics metrics{
      .expert_load = 2, .rank_load = 1.5, .dropped = 1, .assigned = 4, .balance_loss = 6, .layers = 3};
  std::vector<Metric> rows;
  nn::add_rows(metrics, rows);
  std::vector<std::pair<std::string, double>> got;
  for (const Metric& row : rows) got.emplace_back(row.name, number_of(row));
  EXPECT_EQ(got, (std::vector<std::pair<std::string, double>>{
                     {"expert_load", 2}, {"rank_load", 1.5}, {"dropped_share", 0.25}, {"balance_loss", 2}}));
}

TEST(Experts, RefuseImpossibleOptions) {
  const auto message = [](const auto& change) {
    ExpertOptions o = mixture(6, 2);
    change(o);
    return thrown_message([&] { nn::check_options("mlp", o); });
  };
  EXPECT_THAT(message([](auto& o) { o.used = 7; }), HasSubstr("[experts] used must be from 1 to count: got 7 of 6"));
  EXPECT_THAT(message([](auto& o) { o.groups = 4; }),
              HasSubstr("[experts] groups must divide count: got 4 groups of 6"));
  EXPECT_THAT(message([](auto& o) { o.groups = 3, o.used = 3; }),
              HasSubstr("[experts] used must not be above the experts of the groups used: got 3 of 2"));
  EXPECT_THAT(message([](auto& o) { o.groups_used = 2; }), HasSubstr("[experts] groups_used must be from 1 to groups"));
  EXPECT_EQ(message([](auto&) {}), "");
}

}  // namespace
}  // namespace colossal::test::experts_test
