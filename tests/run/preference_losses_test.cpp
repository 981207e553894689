// Losses of preferences: golden values, gradients, and numbers at which formulas of peers fail.
#include "colossal/run/objectives/alignment/preference_losses.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "support/golden_answers.h"

namespace colossal::run::preference_losses_test {
namespace {

using test::digits;
using test::values;
using testing::ElementsAre;
using Answers = test::GoldenAnswers;

/// Chosen and rejected answers of two pairs.
struct Pairs {
  explicit Pairs(const at::Tensor& of) : chosen(of.narrow(0, 0, 2)), rejected(of.narrow(0, 2, 2)) {}
  at::Tensor chosen, rejected;
};

/// A loss of the sums [4] of the four answers.
using Loss = std::function<at::Tensor(const at::Tensor& sums)>;

class PreferenceLosses : public testing::Test {
 protected:
  static at::Tensor margin_of(const at::Tensor& ratios) { return Pairs(ratios).chosen - Pairs(ratios).rejected; }
  Loss dpo(const DpoOptions& options) const {
    return [=, this](const at::Tensor& sums) { return dpo_losses(margin_of(sums - reference), options).mean(); };
  }
  Loss ipo(bool by_token) const {
    return [=, this](const at::Tensor& sums) {
      const at::Tensor ratios = by_token ? (sums - reference) / answers.lengths : sums - reference;
      return ipo_losses(margin_of(ratios), 0.1).mean();
    };
  }
  Loss simpo() const {
    return [this](const at::Tensor& sums) {
      const Pairs means(sums / answers.lengths);
      return simpo_losses(means.chosen, means.rejected, 2, 1).mean();
    };
  }
  Loss odds() const {
    return [this](const at::Tensor& sums) {
      const Pairs means(sums / answers.lengths);
      return stable_softplus(-log_odds_ratios(means.chosen, means.rejected)).mean();
    };
  }
  Loss kto() const {
    return [this](const at::Tensor& sums) {
      return kto_losses(sums - reference, at::tensor({1, 1, 0, 0}, at::kLong), at::scalar_tensor(0.05, at::kDouble),
                        {.beta = 0.1, .desirable_weight = 1, .undesirable_weight = 1.33})
          .mean();
    };
  }
  double value(const Loss& loss) const { return loss(sums).item<double>(); }
  /// Returns the gradients in each log-probability of the answers, which are those in their sums.
  std::vector<double> gradients(const Loss& loss) const {
    const at::Tensor variable = sums.detach().clone().requires_grad_();
    loss(variable).backward();
    return values(variable.grad());
  }
  const Answers answers{};
  const at::Tensor sums = answers.sums(answers.lp), reference = answers.sums(answers.reference);
};

TEST_F(PreferenceLosses, HaveGoldenSums) {
  EXPECT_THAT(values(sums), ElementsAre(digits(-12.6434545657), digits(-10.0330869748), digits(-9.72430999423),
                                        digits(-4.54389503282)));
}

TEST_F(PreferenceLosses, HaveGoldenValues) {
  EXPECT_THAT(values(dpo_losses(margin_of(sums - reference), {.beta = 0.1})),
              ElementsAre(digits(0.700865704602), digits(0.676564754484)));
  EXPECT_THAT(value(dpo({.beta = 0.1})), digits(0.688715229543));
  EXPECT_THAT(value(dpo({.beta = 0.1, .smoothing = 0.1})), digits(0.689618556733));
  EXPECT_THAT(value(dpo({.beta = 0.1, .loss = DpoLoss::Robust, .smoothing = 0.1})), digits(0.687586070555));
  EXPECT_THAT(value(dpo({.beta = 0.1, .loss = DpoLoss::Hinge})), digits(0.990966728096));
  EXPECT_THAT(value(ipo(false)), digits(24.1644234803));
  EXPECT_THAT(value(ipo(true)), digits(24.6877375752));
  EXPECT_THAT(value(simpo()), digits(2.29849607684));
  const Pairs means(sums / answers.lengths);
  EXPECT_THAT(values(log_odds_ratios(means.chosen, means.rejected)),
              ElementsAre(digits(-0.187083720437), digits(-1.15704523187)));
  EXPECT_THAT(value(odds()), digits(1.11074687816));
  EXPECT_THAT(value(kto()), digits(0.58023519672));
}

TEST_F(PreferenceLosses, HaveGoldenGradients) {
  const auto chosen = [&](const Loss& loss) {
    const std::vector<double> all = gradients(loss);
    return std::vector<double>{all[0], all[1]};
  };
  EXPECT_THAT(gradients(dpo({.beta = 0.1})), ElementsAre(digits(-0.0251922203182), digits(-0.0245819830593),
                                                         digits(0.0251922203182), digits(0.0245819830593)));
  EXPECT_THAT(chosen(dpo({.beta = 0.1, .smoothing = 0.1})),
              ElementsAre(digits(-0.0201922203182), digits(-0.0195819830593)));
  EXPECT_THAT(chosen(simpo()), ElementsAre(digits(-0.131662116443), digits(-0.237999041585)));
  EXPECT_THAT(chosen(kto()), ElementsAre(digits(-0.00623855976066), digits(-0.00624630501721)));
}

// Central differences at distance d are off by the third derivative times d^2 / 6 and by the rounding of the values,
// eps |loss| / d. The losses bend by less than 4 in an interval of d.
TEST_F(PreferenceLosses, HaveTheGradientsOfFiniteDifferences) {
  constexpr double kDistance = 1e-5;
  for (const auto& [name, loss] : std::vector<std::pair<std::string, Loss>>{
           {"dpo", dpo({.beta = 0.5})},
           {"cdpo", dpo({.beta = 0.5, .smoothing = 0.2})},
           {"robust", dpo({.beta = 0.5, .loss = DpoLoss::Robust, .smoothing = 0.2})},
           {"hinge", dpo({.beta = 0.1, .loss = DpoLoss::Hinge})},
           {"ipo", ipo(true)},
           {"ipo of sums", ipo(false)},
           {"simpo", simpo()},
           {"orpo", odds()},
           {"kto", kto()}}) {
    const std::vector<double> got = gradients(loss);
    for (int64_t i = 0; i < Answers::kRows; ++i) {
      const at::Tensor distance = at::zeros({Answers::kRows}, at::kDouble).index_fill(0, at::tensor(i), kDistance);
      const double want =
          (loss(sums + distance).item<double>() - loss(sums - distance).item<double>()) / (2 * kDistance);
      const double rounding = 4 * std::numeric_limits<double>::epsilon() * value(loss) / kDistance;
      EXPECT_NEAR(got[static_cast<size_t>(i)], want, 4 * kDistance * kDistance + rounding) << name << ", answer " << i;
    }
  }
}

// ColossalChat computes log(sigmoid(x)), which is -inf at -104 in fp32, and log(1 + exp(x)), which is inf at 89.
TEST(PreferenceLoss, StaysFiniteFarFromZero) {
  for (const double x : {-200.0, -104.0, 89.0, 104.0, 1e4}) {
    const at::Tensor h = at::full({1}, x, at::kFloat).requires_grad_();
    const at::Tensor loss = stable_softplus(h);
    EXPECT_EQ(loss.item<float>(), x > 0 ? static_cast<float>(x) : std::exp(static_cast<float>(x))) << x;
    loss.sum().backward();
    EXPECT_NEAR(h.grad().item<float>(), x > 0 ? 1 : 0, 0) << x;
  }
  const at::Tensor far = at::full({1}, -1e4, at::kFloat).requires_grad_();
  const at::Tensor loss = kto_losses(far, at::ones({1}, at::kLong), at::zeros({1}), {});
  EXPECT_EQ(loss.item<float>(), 1);
}

// ColossalChat takes odds of single tokens, and log(1.0001 - p) in place of log(1 - p).
TEST(PreferenceLoss, TakesTheOddsOfWholeAnswersExactly) {
  const at::Tensor near_one = at::tensor({-1e-9, -1e-3, -2.0}, at::kDouble), other = at::full({3}, -1.0, at::kDouble);
  const std::vector<double> got = values(log_odds_ratios(near_one, other));
  for (size_t i = 0; i < 3; ++i) {
    const double x = near_one[static_cast<int64_t>(i)].item<double>();
    EXPECT_THAT(got[i], digits(x - std::log(-std::expm1(x)) - (-1 - std::log(-std::expm1(-1.0)))));
  }
  const at::Tensor certain = at::zeros({1}, at::kFloat).requires_grad_();  // p = 1
  const at::Tensor ratio = log_odds_ratios(certain, at::full({1}, -1.0, at::kFloat));
  ratio.sum().backward();
  EXPECT_TRUE(std::isfinite(ratio.item<float>()));
  EXPECT_TRUE(std::isfinite(certain.grad().item<float>()));
}

}  // namespace
}  // namespace colossal::run::preference_losses_test
