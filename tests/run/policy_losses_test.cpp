// Losses of policies and value models: golden values, gradients, sums over parts of a batch, and numbers at which
// formulas of peers fail. Those of PPO, which need advantages from values, are in tests/align/advantages_test.cpp.
#include "colossal/run/objectives/alignment/policy_losses.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "support/golden_answers.h"

namespace colossal::run::policy_losses_test {
namespace {

using test::digits;
using test::values;
using testing::ElementsAre;

constexpr int64_t kMaxTokens = 8;

/// A sum of terms, as a function of what a policy or a value model computes: [4, 6] or some of its rows.
using Loss = std::function<at::Tensor(const at::Tensor&)>;

/// Returns advantages [4, 1] of one group with the scores (2, -1, 0, 0.5).
at::Tensor group_of_scores(bool divide_by_spread = true) {
  const at::Tensor scores = at::tensor({2.0, -1.0, 0.0, 0.5}, at::kDouble).view({4, 1});
  const at::Tensor differences = scores - scores.mean();
  return divide_by_spread ? differences / (std::sqrt(differences.square().sum().item<double>() / 3) + 1e-4)
                          : differences;
}

class PolicyLosses : public testing::Test {
 protected:
  TokenTerms policy(const at::Tensor& lp, const PolicyOptions& options, const at::Tensor& advantages) const {
    return policy_losses({lp, answers.old, advantages, answers.counts}, options);
  }
  /// The loss of GRPO with other options.
  Loss grpo(LossMean mean, const PolicyOptions& options, double kl = 0) const {
    return [=, this](const at::Tensor& lp) {
      at::Tensor terms = policy(lp, options, group_of_scores()).losses;
      if (kl > 0) terms = terms + kl * kl_terms(lp, answers.reference, KlEstimator::K3);
      return loss_sum(terms, answers.counts, mean) / weight(mean);
    };
  }
  /// The token mean of an estimate of the KL.
  Loss kl(KlEstimator estimator) const {
    return [=, this](const at::Tensor& lp) {
      return loss_sum(kl_terms(lp, answers.reference, estimator), answers.counts, LossMean::Token) / 18;
    };
  }
  double weight(LossMean mean) const { return loss_weight(answers.counts, mean, kMaxTokens); }
  double value(const Loss& loss) const { return loss(answers.lp).item<double>(); }
  static at::Tensor gradient(const Loss& loss, const at::Tensor& at) {
    const at::Tensor variable = at.detach().clone().requires_grad_();
    loss(variable).backward();
    return variable.grad();
  }
  at::Tensor gradient(const Loss& loss) const { return gradient(loss, answers.lp); }
  static double norm(const at::Tensor& x) { return x.norm().item<double>(); }
  static double first(const at::Tensor& x) { return x[0][0].item<double>(); }

  const test::GoldenAnswers answers{};
  const PolicyOptions dapo{.clip_high = 0.28};
};

TEST_F(PolicyLosses, HaveGoldenDivergences) {
  EXPECT_THAT(value(kl(KlEstimator::K1)), digits(-0.0400156653488));
  EXPECT_THAT(value(kl(KlEstimator::K2)), digits(0.00988424438023));
  EXPECT_THAT(value(kl(KlEstimator::K3)), digits(0.0101053666681));
  EXPECT_THAT(value(kl(KlEstimator::K3Plus)), digits(0.0101053666681));
  EXPECT_THAT(18 * first(gradient(kl(KlEstimator::K1))), digits(1));
  EXPECT_THAT(18 * first(gradient(kl(KlEstimator::K2))), digits(-0.0591040413323));
  EXPECT_THAT(18 * first(gradient(kl(KlEstimator::K3))), digits(-0.0608856109509));
  EXPECT_THAT(18 * first(gradient(kl(KlEstimator::K3Plus))), digits(-0.0591040413323));
}

TEST_F(PolicyLosses, HaveGoldenLossesOfGroups) {
  const Loss sequence = grpo(LossMean::Sequence, {}), with_kl = grpo(LossMean::Sequence, {}, 0.04);
  EXPECT_THAT(value(sequence), digits(-0.00517114216828));
  EXPECT_THAT(value(with_kl), digits(-0.0047896733848));
  EXPECT_THAT(norm(gradient(with_kl)), digits(0.14999521402));
  EXPECT_THAT(first(gradient(with_kl)), digits(-0.040225919683));
  EXPECT_THAT(value(grpo(LossMean::Token, {})), digits(-0.12588167258));
  EXPECT_THAT(value([&](const at::Tensor& lp) {
                return loss_sum(policy(lp, {}, group_of_scores(false)).losses, answers.counts, LossMean::Constant) /
                       weight(LossMean::Constant);
              }),
              digits(-0.0885176318769));
  EXPECT_THAT(value(grpo(LossMean::Token, dapo)), digits(-0.137436303765));
  EXPECT_THAT(norm(gradient(grpo(LossMean::Token, dapo))), digits(0.16826491908));
}

TEST_F(PolicyLosses, HaveGoldenLossesOfSequenceRatios) {
  const at::Tensor ratios = at::exp(answers.sums(answers.lp - answers.old) / answers.lengths);
  EXPECT_THAT(values(ratios), ElementsAre(digits(1.02268936529), digits(0.895497629398), digits(1.17374338478),
                                          digits(0.828704121538)));
  const PolicyOptions gspo{.ratio = PolicyRatio::Sequence, .clip_low = 0.03, .clip_high = 0.04};
  EXPECT_THAT(value(grpo(LossMean::Sequence, gspo)), digits(0.0016889719817));
  EXPECT_THAT(norm(gradient(grpo(LossMean::Sequence, gspo))), digits(0.141780899582));
  const TokenTerms terms = policy(answers.lp, gspo, group_of_scores());
  EXPECT_THAT(values(terms.clipped.sum(1)), ElementsAre(0, 4, 0, 0));
  EXPECT_TRUE(terms.losses.sizes() == answers.lp.sizes());
}

TEST_F(PolicyLosses, HaveGoldenLossesOfCappedRatios) {
  const PolicyOptions cispo{.loss = PolicyLoss::Cispo, .clip_high = 0.28};
  EXPECT_THAT(value(grpo(LossMean::Token, cispo)), digits(0.18012720245));
  const at::Tensor ratios = at::exp(answers.lp - answers.old);
  const at::Tensor want = -ratios.clamp_max(1.28) * group_of_scores() * answers.counts / 18;
  EXPECT_TRUE(at::allclose(gradient(grpo(LossMean::Token, cispo)), want, 1e-15, 1e-15));
  EXPECT_TRUE(
      at::equal(policy(answers.lp, cispo, group_of_scores()).clipped, (ratios > 1.28).logical_and(answers.counts)));
}

TEST_F(PolicyLosses, HaveGoldenLossesBeforeTheFirstUpdate) {
  const auto at_start = [&](LossMean mean, const PolicyOptions& options) {
    return loss_sum(policy_losses({answers.lp, answers.lp, group_of_scores(), answers.counts}, options).losses,
                    answers.counts, mean)
               .item<double>() /
           weight(mean);
  };
  // The sum of four advantages of at most 1.3, each rounded.
  EXPECT_NEAR(at_start(LossMean::Sequence, {}), 0, 4 * 1.3 * std::numeric_limits<double>::epsilon());
  EXPECT_THAT(at_start(LossMean::Token, dapo), digits(-0.122212445227));
}

TEST_F(PolicyLosses, HaveGoldenImportanceWeights) {
  const at::Tensor weights = importance_weights(answers.old, answers.sampled, 1.2);
  EXPECT_THAT(answers.mean(weights), digits(0.94551750968));
  EXPECT_THAT(values((weights == 1.2).logical_and(answers.counts).sum()), ElementsAre(6));
  const Loss weighted = [&](const at::Tensor& lp) {
    return loss_sum(policy(lp, dapo, group_of_scores()).losses * weights, answers.counts, LossMean::Token) / 18;
  };
  EXPECT_THAT(value(weighted), digits(-0.175250603843));
  EXPECT_THAT(answers.mean(kl_terms(answers.sampled, answers.old, KlEstimator::K3)), digits(0.040941455505));
  const at::Tensor variable = answers.old.clone().requires_grad_();
  EXPECT_FALSE(importance_weights(variable, answers.sampled, 1.2).requires_grad());
}

TEST_F(PolicyLosses, WeighEntropiesAsTokens) {
  EXPECT_THAT(loss_sum(answers.entropies, answers.counts, LossMean::Token).item<double>() / weight(LossMean::Token),
              digits(1.70082294359));
  EXPECT_THAT(first(answers.entropies), digits(1.81679308428));
}

TEST_F(PolicyLosses, AddUpOverPartsOfABatch) {
  const auto part = [&](int64_t begin, int64_t rows, LossMean mean, const PolicyOptions& options) {
    const auto of = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    const at::Tensor lp = of(answers.lp).clone().requires_grad_(), counts = of(answers.counts);
    const TokenTerms terms = policy_losses({lp, of(answers.old), of(group_of_scores()), counts}, options);
    const at::Tensor sum =
        loss_sum(terms.losses + 0.04 * kl_terms(lp, of(answers.reference), KlEstimator::K3), counts, mean);
    sum.backward();
    return std::tuple(sum.item<double>(), loss_weight(counts, mean, kMaxTokens), lp.grad());
  };
  for (const LossMean mean : {LossMean::Token, LossMean::Sequence, LossMean::Constant})
    for (const PolicyRatio ratio : {PolicyRatio::Token, PolicyRatio::Sequence}) {
      const PolicyOptions options{.ratio = ratio};
      const auto [sum, weight, gradient] = part(0, 4, mean, options);
      for (const int64_t cut : {1, 2, 3}) {
        const auto [first_sum, first_weight, first_gradient] = part(0, cut, mean, options);
        const auto [last_sum, last_weight, last_gradient] = part(cut, 4 - cut, mean, options);
        EXPECT_THAT(first_sum + last_sum, digits(sum));
        EXPECT_EQ(first_weight + last_weight, weight);
        EXPECT_TRUE(at::equal(at::cat({first_gradient, last_gradient}), gradient));
      }
    }
  const auto sum_of = [&](int64_t begin, int64_t rows) {
    const auto of = [&](const at::Tensor& x) { return x.narrow(0, begin, rows); };
    return loss_sum(
               policy_losses({of(answers.lp), of(answers.old), of(group_of_scores()), of(answers.counts)}, dapo).losses,
               of(answers.counts), LossMean::Token)
        .item<double>();
  };
  EXPECT_THAT(sum_of(0, 2), digits(-3.99772920071));
  EXPECT_THAT(sum_of(2, 2), digits(1.52387573294));
  EXPECT_THAT((sum_of(0, 2) + sum_of(2, 2)) / 18, digits(-0.137436303765));
}

TEST_F(PolicyLosses, WeighRowsThatCount) {
  const at::Tensor counts = at::cat({answers.counts, at::zeros({2, 6}, at::kBool)});
  EXPECT_EQ(loss_weight(counts, LossMean::Token, kMaxTokens), 18);
  EXPECT_EQ(loss_weight(counts, LossMean::Sequence, kMaxTokens), 4);
  EXPECT_EQ(loss_weight(counts, LossMean::Constant, kMaxTokens), 32);
  for (const LossMean mean : {LossMean::Token, LossMean::Sequence, LossMean::Constant})
    EXPECT_EQ(loss_sum(at::ones({2, 6}), at::zeros({2, 6}, at::kBool), mean).item<float>(), 0);
}

/// Expects the gradient of `loss` at `x` [4, 6] to be that of `same`'s central differences. At distance d these are off
/// by the third derivative times d^2 / 6 and by the rounding of the values, eps |loss| / d. The losses bend by less
/// than 4 in an interval of d.
void expect_gradient(const char* name, const Loss& loss, const Loss& same, const at::Tensor& x) {
  constexpr double kDistance = 1e-5;
  const at::Tensor variable = x.detach().clone().requires_grad_();
  loss(variable).backward();
  for (int64_t i = 0; i < x.numel(); ++i) {
    const at::Tensor distance = at::zeros({x.numel()}, at::kDouble);
    distance[i] = kDistance;
    const auto at = [&](double sign) { return same(x + sign * distance.view_as(x)).item<double>(); };
    const double want = (at(1) - at(-1)) / (2 * kDistance);
    const double rounding = 4 * std::numeric_limits<double>::epsilon() * std::max(1.0, std::abs(at(0))) / kDistance;
    EXPECT_NEAR(variable.grad().flatten()[i].item<double>(), want, 4 * kDistance * kDistance + rounding)
        << name << ", token " << i;
  }
}

TEST_F(PolicyLosses, HaveTheGradientsOfFiniteDifferences) {
  for (const LossMean mean : {LossMean::Token, LossMean::Sequence, LossMean::Constant})
    for (const auto& [name, options] : std::vector<std::pair<const char*, PolicyOptions>>{
             {"clip", {}},
             {"dual clip", {.dual_clip = 1.1}},
             {"gspo", {.ratio = PolicyRatio::Sequence, .clip_low = 0.03, .clip_high = 0.04}},
             {"gspo, dual clip", {.ratio = PolicyRatio::Sequence, .dual_clip = 1.01}}})
      expect_gradient(name, grpo(mean, options, 0.04), grpo(mean, options, 0.04), answers.lp);
  for (const KlEstimator estimator : {KlEstimator::K1, KlEstimator::K2, KlEstimator::K3})
    expect_gradient("kl", kl(estimator), kl(estimator), answers.lp);
  expect_gradient("k3+", kl(KlEstimator::K3Plus), kl(KlEstimator::K2), answers.lp);
  const at::Tensor returns = 0.4 * at::sin(answers.old_values * 9);
  for (const double clip : {0.0, 0.2}) {
    const Loss loss = [&](const at::Tensor& x) {
      return loss_sum(value_losses(x, answers.old_values, returns, answers.counts, clip).losses, answers.counts,
                      LossMean::Token) /
             18;
    };
    expect_gradient("value", loss, loss, answers.values);
  }
}

// ColossalChat computes exp(lr) - 1 - lr with lr = log(policy / reference), which is the estimate for tokens that the
// reference drew. The mean over a distribution of three words is the exact divergence with the right sign alone.
TEST(KlTerms, EstimateTheDivergenceOfThePolicy) {
  const at::Tensor p = at::tensor({0.7, 0.2, 0.1}, at::kDouble), q = at::tensor({0.3, 0.3, 0.4}, at::kDouble);
  const at::Tensor want = (p * (p / q).log()).sum();
  for (const KlEstimator estimator : {KlEstimator::K1, KlEstimator::K3, KlEstimator::K3Plus})
    EXPECT_THAT((p * kl_terms(p.log(), q.log(), estimator)).sum().item<double>(), digits(want.item<double>()));
  const at::Tensor golden = at::tensor({-0.3}, at::kDouble), zero = at::zeros({1}, at::kDouble);
  EXPECT_THAT(values(kl_terms(golden, zero, KlEstimator::K1)), ElementsAre(digits(-0.3)));
  EXPECT_THAT(values(kl_terms(golden, zero, KlEstimator::K2)), ElementsAre(digits(0.045)));
  EXPECT_NEAR(kl_terms(golden, zero, KlEstimator::K3).item<double>(), 0.0498588, 5e-8);
  EXPECT_THAT(values(kl_terms(zero, zero, KlEstimator::K3)), ElementsAre(0));
}

// exp() of a difference of log-probabilities overflows at 89 in fp32. Its gradient is then inf * 0.
TEST_F(PolicyLosses, StayFiniteFarFromZero) {
  for (const double far : {-1e4, -104.0, -25.0, 25.0, 89.0, 104.0, 1e4}) {
    const at::Tensor counts = at::ones({1, 3}, at::kBool), advantages = at::tensor({1.0f, -1.0f, 0.0f}).view({1, 3});
    const at::Tensor old = at::zeros({1, 3}), lp = at::full({1, 3}, far, at::kFloat);
    for (const PolicyLoss loss : {PolicyLoss::Clip, PolicyLoss::Cispo})
      for (const PolicyRatio ratio : {PolicyRatio::Token, PolicyRatio::Sequence}) {
        const at::Tensor variable = lp.clone().requires_grad_();
        const at::Tensor sum =
            loss_sum(policy_losses({variable, old, advantages, counts}, {.loss = loss, .ratio = ratio}).losses, counts,
                     LossMean::Token);
        sum.backward();
        EXPECT_TRUE(std::isfinite(sum.item<float>())) << far;
        EXPECT_TRUE(variable.grad().isfinite().all().item<bool>()) << far;
      }
    for (const KlEstimator estimator : {KlEstimator::K1, KlEstimator::K2, KlEstimator::K3, KlEstimator::K3Plus}) {
      const at::Tensor variable = lp.clone().requires_grad_();
      const at::Tensor sum = kl_terms(variable, old, estimator).sum();
      sum.backward();
      EXPECT_TRUE(std::isfinite(sum.item<float>())) << far;
      EXPECT_TRUE(variable.grad().isfinite().all().item<bool>()) << far;
    }
    EXPECT_LE(importance_weights(lp, old, 2).max().item<float>(), 2) << far;
  }
}

// The dual clip bounds the loss of a negative advantage, whose ratio no other bound holds.
TEST_F(PolicyLosses, BoundNegativeAdvantagesByTheDualClip) {
  const at::Tensor lp = at::full({1, 2}, 3.0, at::kDouble), counts = at::ones({1, 2}, at::kBool);
  const at::Tensor advantages = at::tensor({-2.0, 2.0}, at::kDouble).view({1, 2});
  const PolicyTokens tokens{lp, at::zeros_like(lp), advantages, counts};
  EXPECT_THAT(values(policy_losses(tokens, {}).losses), ElementsAre(digits(2 * std::exp(3.0)), digits(-2.4)));
  const TokenTerms dual = policy_losses(tokens, {.dual_clip = 3});
  EXPECT_THAT(values(dual.losses), ElementsAre(digits(6), digits(-2.4)));
  EXPECT_THAT(values(dual.clipped), ElementsAre(1, 1));
}

// Old values are 0 and the range is 0.2. The first value left it away from the return, the second towards it, and the
// third stays within it.
TEST(ValueLosses, TakeTheLargerOfBoth) {
  const at::Tensor v = at::tensor({1.0, 1.0, 0.1}, at::kDouble).view({1, 3}).requires_grad_();
  const at::Tensor returns = at::tensor({-1.0, 1.0, 1.0}, at::kDouble).view({1, 3});
  const at::Tensor old = at::zeros({1, 3}, at::kDouble), counts = at::ones({1, 3}, at::kBool);
  const TokenTerms terms = value_losses(v, old, returns, counts, 0.2);
  EXPECT_THAT(values(terms.losses), ElementsAre(digits(2), digits(0.32), digits(0.405)));
  EXPECT_THAT(values(terms.clipped), ElementsAre(0, 1, 0));
  terms.losses.sum().backward();
  EXPECT_THAT(values(v.grad()), ElementsAre(digits(2), 0, digits(-0.9)));
}

// V_old + (V - V_old) differs from V by rounding, which must not take the gradient of a value within the range.
TEST(ValueLosses, KeepTheGradientWithinTheRange) {
  const at::Tensor i = at::arange(1000, at::kFloat).view({1, 1000}), old = 0.15 * at::sin(i);
  const at::Tensor v = (0.01 * at::cos(3 * i)).requires_grad_();
  const at::Tensor returns = at::zeros_like(old), counts = at::ones_like(old).to(at::kBool);
  const TokenTerms terms = value_losses(v, old, returns, counts, 0.2);
  terms.losses.sum().backward();
  EXPECT_TRUE(at::equal(v.grad(), v.detach() - returns));
  EXPECT_FALSE(terms.clipped.any().item<bool>());
}

TEST_F(PolicyLosses, IgnoreWhatDoesNotCount) {
  const at::Tensor skipped = answers.counts.logical_not();
  const auto filled = [&](const at::Tensor& x) { return x.masked_fill(skipped, 1e300); };
  for (const LossMean mean : {LossMean::Token, LossMean::Sequence, LossMean::Constant})
    for (const PolicyRatio ratio : {PolicyRatio::Token, PolicyRatio::Sequence}) {
      const PolicyOptions options{.ratio = ratio};
      const at::Tensor advantages = group_of_scores().expand_as(answers.lp);
      const auto sum = [&](const at::Tensor& lp, const at::Tensor& old, const at::Tensor& reference,
                           const at::Tensor& factors) {
        const TokenTerms terms = policy_losses({lp, old, factors, answers.counts}, options);
        return loss_sum(terms.losses + kl_terms(lp, reference, KlEstimator::K3), answers.counts, mean);
      };
      const Loss plain = [&](const at::Tensor& lp) { return sum(lp, answers.old, answers.reference, advantages); };
      const Loss other = [&](const at::Tensor& lp) {
        return sum(lp, -filled(-answers.old), filled(answers.reference), filled(advantages));
      };
      EXPECT_EQ(other(answers.lp).item<double>(), value(plain));
      EXPECT_TRUE(at::equal(gradient(other), gradient(plain)));
      EXPECT_EQ(norm(gradient(other).masked_select(skipped)), 0);
    }
}

TEST_F(PolicyLosses, TakeArgumentsOfOtherTypes) {
  const at::Tensor lp = answers.lp.to(at::kFloat);
  const TokenTerms terms = policy_losses({lp, answers.old, group_of_scores(), answers.counts}, {});
  EXPECT_EQ(terms.losses.scalar_type(), at::kFloat);
  EXPECT_EQ(kl_terms(lp, answers.reference, KlEstimator::K3Plus).scalar_type(), at::kFloat);
  EXPECT_EQ(loss_sum(terms.losses, answers.counts, LossMean::Sequence).scalar_type(), at::kFloat);
  EXPECT_EQ(value_losses(lp, answers.old, answers.reference, answers.counts, 0.2).losses.scalar_type(), at::kFloat);
}

// Steps are recorded on shapes alone, where some operators or their gradients do not exist.
TEST_F(PolicyLosses, RunOnMeta) {
  const auto meta = [](const at::Tensor& x) { return at::empty_like(x, x.options().device(at::kMeta)); };
  const at::Tensor old = meta(answers.old), counts = meta(answers.counts), advantages = meta(group_of_scores());
  for (const LossMean mean : {LossMean::Token, LossMean::Sequence, LossMean::Constant}) {
    EXPECT_EQ(loss_weight(counts, mean, kMaxTokens), 0);
    for (const PolicyLoss loss : {PolicyLoss::Clip, PolicyLoss::Cispo})
      for (const PolicyRatio ratio : {PolicyRatio::Token, PolicyRatio::Sequence})
        for (const KlEstimator estimator : {KlEstimator::K1, KlEstimator::K2, KlEstimator::K3, KlEstimator::K3Plus}) {
          const at::Tensor lp = meta(answers.lp).requires_grad_();
          const TokenTerms terms =
              policy_losses({lp, old, advantages, counts}, {.loss = loss, .ratio = ratio, .dual_clip = 3});
          loss_sum(terms.losses * importance_weights(old, old, 2) + kl_terms(lp, old, estimator), counts, mean)
              .backward();
          EXPECT_TRUE(lp.grad().sizes() == lp.sizes());
          EXPECT_TRUE(terms.clipped.sizes() == lp.sizes());
        }
    const at::Tensor value = meta(answers.values).requires_grad_();
    loss_sum(value_losses(value, old, old, counts, 0.2).losses, counts, mean).backward();
    EXPECT_TRUE(value.grad().sizes() == value.sizes());
  }
}

}  // namespace
}  // namespace colossal::run::policy_losses_test
