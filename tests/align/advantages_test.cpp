// Rewards and advantages: golden values, the losses of PPO that follow from them, and cases that peers get wrong.
#include "colossal/align/advantages.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "colossal/run/objectives/alignment/policy_losses.h"
#include "support/golden_answers.h"
#include "support/thrown_message.h"

namespace colossal::align::advantages_test {
namespace {

using run::KlEstimator;
using run::LossMean;
using test::digits;
using test::values;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

at::Tensor row(const std::vector<double>& numbers) { return at::tensor(numbers, at::kDouble).unsqueeze(0); }
at::Tensor mask(const std::vector<int64_t>& counts) { return at::tensor(counts, at::kLong).unsqueeze(0).to(at::kBool); }
at::Tensor column(const std::vector<double>& numbers) { return at::tensor(numbers, at::kDouble).unsqueeze(1); }

/// PPO on the golden answers, from rewards to losses.
class Advantages : public testing::Test {
 protected:
  Advantages() {
    rewards = token_rewards(std::vector<OptionalScore>{1, -0.5, 0.25, 0}, kl, answers.counts, 0.05);
    estimates = token_advantages(rewards, answers.old_values, answers.counts, {.gamma = 1, .lambda = 0.95});
    white = whitened(estimates.advantages, answers.counts, whitening_sums(estimates.advantages, answers.counts));
  }
  double mean(const at::Tensor& terms, LossMean mean) const {
    return (run::loss_sum(terms, answers.counts, mean) / run::loss_weight(answers.counts, mean, 0)).item<double>();
  }
  run::TokenTerms policy(const at::Tensor& advantages, const run::PolicyOptions& options = {}) const {
    return run::policy_losses({lp, answers.old, advantages, answers.counts}, options);
  }
  run::TokenTerms value_terms(double clip) const {
    return run::value_losses(new_values, answers.old_values, estimates.returns, answers.counts, clip);
  }
  /// Returns the gradient of the token mean in `variable`.
  at::Tensor gradient(const at::Tensor& terms, const at::Tensor& variable) const {
    (run::loss_sum(terms, answers.counts, LossMean::Token) / 18).backward();
    return variable.grad();
  }
  static double at(const at::Tensor& x, int64_t row, int64_t token) { return x[row][token].item<double>(); }

  const test::GoldenAnswers answers{};
  const at::Tensor kl = run::kl_terms(answers.old, answers.reference, KlEstimator::K1);
  const at::Tensor lp = answers.lp.clone().requires_grad_(), new_values = answers.values.clone().requires_grad_();
  at::Tensor rewards, white;
  TokenAdvantages estimates;
};

TEST_F(Advantages, HaveGoldenValues) {
  EXPECT_THAT(at(rewards, 0, 0), digits(-0.0120447979334));
  EXPECT_THAT(at(rewards, 0, 5), digits(1.01739673181));
  const at::Tensor& advantages = estimates.advantages;
  EXPECT_THAT(at(advantages, 0, 0), digits(0.348585408577));
  EXPECT_THAT(at(advantages, 0, 1), digits(0.421157588957));
  EXPECT_THAT(at(advantages, 0, 5), digits(1.22547015008));
  EXPECT_THAT(at(advantages, 1, 0), digits(-0.170350103239));
  EXPECT_THAT(at(advantages, 1, 3), digits(-0.076580317467));
  EXPECT_THAT(advantages.sum().item<double>(), digits(3.42081830337));
  EXPECT_THAT(at(estimates.returns, 0, 0), digits(0.848585408577));
  EXPECT_THAT(estimates.returns.sum().item<double>(), digits(4.90039715967));
  const std::vector<double> sums = values(whitening_sums(advantages, answers.counts));
  EXPECT_EQ(sums[0], 18);
  EXPECT_THAT(sums[1] / 18, digits(0.190045461298));
  EXPECT_THAT((sums[2] - sums[1] * sums[1] / 18) / 17, digits(0.201493679514));
  EXPECT_THAT(at(white, 0, 0), digits(0.353189663383));
  EXPECT_THAT(at(white, 3, 2), digits(-0.282978131382));
}

TEST_F(Advantages, GiveGoldenLossesOfPpo) {
  const run::TokenTerms terms = policy(white);
  EXPECT_THAT(mean(terms.losses, LossMean::Token), digits(-0.0574369306493));
  EXPECT_THAT(mean(terms.losses, LossMean::Sequence), digits(0.104495645038));
  EXPECT_EQ(terms.clipped.sum().item<int64_t>(), 5);
  const at::Tensor slope = gradient(terms.losses, lp);
  EXPECT_THAT(slope.norm().item<double>(), digits(0.149488279172));
  EXPECT_THAT(at(slope, 0, 0), digits(-0.0145360743328));
  EXPECT_THAT(mean(policy(4 * white).losses, LossMean::Token), digits(-0.229747722597));
  EXPECT_THAT(mean(policy(4 * white, {.dual_clip = 1.1}).losses, LossMean::Token), digits(-0.288517312208));
}

TEST_F(Advantages, GiveGoldenLossesOfValues) {
  const run::TokenTerms terms = value_terms(0.2);
  EXPECT_THAT(mean(terms.losses, LossMean::Token), digits(0.15525310665));
  EXPECT_THAT(mean(value_terms(0).losses, LossMean::Token), digits(0.153219578937));
  EXPECT_EQ(terms.clipped.sum().item<int64_t>(), 2);
  EXPECT_EQ(value_terms(0).clipped.sum().item<int64_t>(), 0);
  EXPECT_THAT(gradient(terms.losses, new_values).norm().item<double>(), digits(0.129174685077));
}

// ColossalChat adds the score to the reward of every token.
TEST_F(Advantages, GetTheScoreAtTheLastTokenAlone) {
  const auto first = [&](const at::Tensor& of) {
    return at(token_advantages(of, answers.old_values, answers.counts, {.gamma = 1, .lambda = 1}).advantages, 0, 0);
  };
  EXPECT_THAT(first(rewards), digits(0.547040491798));
  EXPECT_THAT(first(column({1, -0.5, 0.25, 0}) - 0.05 * kl), digits(5.5470404918));  // upstream's
  const at::Tensor of_score = token_rewards(std::vector<OptionalScore>{2, 3, -1, 4}, kl, answers.counts, 0);
  EXPECT_THAT(values(of_score.sum(1)), ElementsAre(2, 3, -1, 4));
  EXPECT_THAT(values((of_score != 0).sum(1)), Each(1));
  const at::Tensor counts = mask({0, 1, 1, 0, 1, 0});
  EXPECT_THAT(values(token_rewards(std::vector<OptionalScore>{1}, at::ones({1, 6}), counts, 0.5)),
              ElementsAre(0, -0.5, -0.5, 0, 0.5, 0));
}

TEST_F(Advantages, SkipTokensOfOthers) {
  const at::Tensor rewards = row({-0.01, -0.02, 7, -8, -0.03, 1}), values = row({0.5, 0.4, 9, -6, 0.3, 0.2});
  const TokenAdvantages got = token_advantages(rewards, values, mask({1, 1, 0, 0, 1, 1}), {.gamma = 1, .lambda = 0.95});
  EXPECT_THAT(test::values(got.advantages),
              ElementsAre(digits(0.344575), digits(0.4785), 0, 0, digits(0.63), digits(0.8)));
  EXPECT_THAT(test::values(got.returns), ElementsAre(digits(0.844575), digits(0.8785), 0, 0, digits(0.93), digits(1)));
  // A row without such tokens, and with padding, is the same.
  const TokenAdvantages same = token_advantages(row({-0.01, -0.02, -0.03, 1, 5}), row({0.5, 0.4, 0.3, 0.2, 5}),
                                                mask({1, 1, 1, 1, 0}), {.gamma = 1, .lambda = 0.95});
  EXPECT_THAT(test::values(same.advantages),
              ElementsAre(digits(0.344575), digits(0.4785), digits(0.63), digits(0.8), 0));
}

TEST_F(Advantages, DiscountByGammaAndLambda) {
  const at::Tensor last = row({0, 0, 0, 1}), falling = row({0.5, 0.4, 0.3, 0.2}), all = mask({1, 1, 1, 1});
  EXPECT_THAT(values(token_advantages(last, falling, all, {.gamma = 1, .lambda = 0.95}).advantages),
              ElementsAre(digits(0.40065), digits(0.527), digits(0.66), digits(0.8)));
  EXPECT_THAT(values(token_advantages(last, falling, all, {.gamma = 1, .lambda = 1}).advantages),
              ElementsAre(digits(0.5), digits(0.6), digits(0.7), digits(0.8)));
  EXPECT_THAT(values(token_advantages(last, falling, all, {.gamma = 0.5, .lambda = 0}).advantages),
              ElementsAre(digits(-0.3), digits(-0.25), digits(-0.2), digits(0.8)));
  EXPECT_THAT(values(token_returns(row({1, 2, 9, 4}), mask({1, 1, 0, 1}), 0.5)), ElementsAre(3, 4, 0, 4));
}

TEST_F(Advantages, WhitenOverAllRanks) {
  const at::Tensor& advantages = estimates.advantages;
  at::Tensor sums = at::zeros({3}, at::kDouble);
  for (int64_t rank = 0; rank < 4; ++rank)
    sums += whitening_sums(advantages.narrow(0, rank, 1), answers.counts.narrow(0, rank, 1));
  for (int64_t rank = 0; rank < 4; ++rank) {
    const at::Tensor part = whitened(advantages.narrow(0, rank, 1), answers.counts.narrow(0, rank, 1), sums);
    EXPECT_TRUE(at::allclose(part, white.narrow(0, rank, 1), 1e-14, 0));
  }
  const at::Tensor again = whitening_sums(white, answers.counts);
  EXPECT_NEAR(again[1].item<double>(), 0, 18 * std::numeric_limits<double>::epsilon());
  EXPECT_THAT(again[2].item<double>(), digits(17 * (1 - 1e-8 / (0.201493679514 + 1e-8))));
}

TEST_F(Advantages, WhitenWithoutSpread) {
  EXPECT_THAT(values(whitened(row({3, 4}), mask({1, 0}), whitening_sums(row({3, 4}), mask({1, 0})))), Each(0));
  EXPECT_THAT(values(whitened(row({3, 4}), mask({0, 0}), whitening_sums(row({3, 4}), mask({0, 0})))), Each(0));
  // The mean of equal numbers differs from them by rounding, and the sums give a variance near 0 or below.
  for (const double number : {0.1, 100.1, 1e5 + 0.1, 3e5 + 0.7, 1e6 + 0.3}) {
    const at::Tensor equal = at::full({1, 10}, number, at::kDouble), all = at::ones({1, 10}, at::kBool);
    const double rounding = 10 * number * std::numeric_limits<double>::epsilon() / 1e-4;
    EXPECT_THAT(values(whitened(equal, all, whitening_sums(equal, all))), Each(testing::DoubleNear(0, rounding)));
  }
}

TEST_F(Advantages, RefuseWhatDoesNotFit) {
  const auto error = [](const auto& f) { return test::thrown_message([&] { f(); }); };
  const at::Tensor counts = mask({1, 1, 0});
  EXPECT_THAT(error([&] { token_rewards(std::vector<OptionalScore>{1}, row({1, 2}), counts, 1); }),
              HasSubstr("kl must be [B, T] as counts: got [1, 2] and [1, 3]"));
  EXPECT_THAT(error([&] { token_rewards(std::vector<OptionalScore>{1, 2}, row({1, 2, 3}), counts, 1); }),
              HasSubstr("got 2 scores and 1 rows"));
  EXPECT_THAT(error([&] { token_rewards(std::vector<OptionalScore>{std::nullopt}, row({1, 2, 3}), counts, 1); }),
              HasSubstr("got none in row 0; leave its tokens out of counts"));
  EXPECT_THAT(error([&] { whitening_sums(row({1, 2, 3}).to(at::kMeta), counts); }), HasSubstr("must be on the host"));
  EXPECT_THAT(error([&] { whitened(row({1, 2, 3}), counts, row({1, 2})); }), HasSubstr("sums must be the three"));
  EXPECT_THAT(error([&] { group_advantages(std::vector<OptionalScore>{1, 2, 3}, 2, GroupAdvantage::Mean); }),
              HasSubstr("whole groups of 2 answers: got 3"));
  EXPECT_THAT(values(token_rewards(std::vector<OptionalScore>{std::nullopt}, row({1, 2, 3}), mask({0, 0, 0}), 1)),
              Each(0));
}

TEST_F(Advantages, HaveGoldenReturnsOfReinforce) {
  const std::vector<OptionalScore> scores{2, -1, 0, 0.5};
  const at::Tensor returns = token_returns(token_rewards(scores, kl, answers.counts, 0.01), answers.counts, 1);
  const at::Tensor got = whitened(returns, answers.counts, whitening_sums(returns, answers.counts));
  EXPECT_THAT(at(got, 0, 0), digits(1.24554198633));
  EXPECT_THAT(at(got, 1, 0), digits(-1.29727418632));
  EXPECT_THAT(at(got, 3, 2), digits(-0.0273485603183));
  const at::Tensor differences = column(group_advantages(scores, 4, GroupAdvantage::Mean)).expand({4, 6});
  const at::Tensor baseline = whitened(differences, answers.counts, whitening_sums(differences, answers.counts));
  EXPECT_THAT(values(baseline.select(1, 0)), ElementsAre(digits(1.24592828371), digits(-1.29294444536),
                                                         digits(-0.446653535669), digits(-0.0235080808247)));
}

TEST(GroupAdvantages, HaveGoldenValues) {
  const std::vector<OptionalScore> scores{2, -1, 0, 0.5};
  EXPECT_THAT(
      group_advantages(scores, 4, GroupAdvantage::Spread),
      ElementsAre(digits(1.29989600832), digits(-1.09991200704), digits(-0.29997600192), digits(0.0999920006399)));
  EXPECT_THAT(group_advantages(scores, 4, GroupAdvantage::Mean), ElementsAre(1.625, -1.375, -0.375, 0.125));
  EXPECT_THAT(group_advantages(scores, 4, GroupAdvantage::LeaveOneOut),
              ElementsAre(digits(2.16666666667), digits(-1.83333333333), -0.5, digits(0.166666666667)));
  const double a = 0.865875429761;
  EXPECT_THAT(group_advantages(std::vector<OptionalScore>{1, 0, 0, 1}, 4, GroupAdvantage::Spread),
              ElementsAre(digits(a), digits(-a), digits(-a), digits(a)));
}

// ColossalChat multiplies by the spread in one of its methods.
TEST(GroupAdvantages, DoNotDependOnTheScaleOfScores) {
  const std::vector<double> small = group_advantages(std::vector<OptionalScore>{1, 0, 0, 1}, 4, GroupAdvantage::Spread);
  const std::vector<double> large =
      group_advantages(std::vector<OptionalScore>{1e3, 0, 0, 1e3}, 4, GroupAdvantage::Spread);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(large[i], small[i], 1e-4 / 0.57);  // what 1e-4 adds to the spread
}

TEST(GroupAdvantages, CompareAnswersOfOneGroup) {
  const std::vector<OptionalScore> scores{1, 0, 5, 5, 7, 9};
  EXPECT_THAT(group_advantages(scores, 2, GroupAdvantage::Mean), ElementsAre(0.5, -0.5, 0, 0, -1, 1));
  EXPECT_THAT(group_advantages(scores, 2, GroupAdvantage::LeaveOneOut), ElementsAre(1, -1, 0, 0, -2, 2));
}

TEST(GroupAdvantages, VanishWithoutSpread) {
  // The mean of three times 0.1 is not 0.1.
  for (const GroupAdvantage kind : {GroupAdvantage::Spread, GroupAdvantage::Mean, GroupAdvantage::LeaveOneOut}) {
    EXPECT_THAT(group_advantages(std::vector<OptionalScore>{0.1, 0.1, 0.1}, 3, kind), ElementsAre(0, 0, 0));
    EXPECT_THAT(group_advantages(std::vector<OptionalScore>{0.1}, 1, kind), ElementsAre(0));
  }
  EXPECT_FALSE(has_spread(std::vector<OptionalScore>{0.1, 0.1, 0.1}));
  EXPECT_TRUE(has_spread(std::vector<OptionalScore>{0.1, std::nullopt, 0.2}));
}

TEST(GroupAdvantages, LeaveOutAnswersWithoutAScore) {
  const std::vector<OptionalScore> scores{2, std::nullopt, -1, 0, 0.5, std::nullopt}, scored{2, -1, 0, 0.5};
  for (const GroupAdvantage kind : {GroupAdvantage::Spread, GroupAdvantage::Mean, GroupAdvantage::LeaveOneOut}) {
    const std::vector<double> want = group_advantages(scored, 4, kind);
    EXPECT_THAT(group_advantages(scores, 6, kind), ElementsAre(want[0], 0, want[1], want[2], want[3], 0));
    EXPECT_THAT(group_advantages(std::vector<OptionalScore>{std::nullopt, 3, std::nullopt, std::nullopt}, 2, kind),
                Each(0));
  }
  EXPECT_FALSE(has_spread(std::vector<OptionalScore>{std::nullopt, std::nullopt, 1}));
  EXPECT_FALSE(has_spread(std::vector<OptionalScore>{std::nullopt}));
  EXPECT_FALSE(has_spread({}));
}

TEST(PenalizedScores, LoseTheDivergenceOfTheirTokens) {
  const at::Tensor kl = at::cat({row({1, 2, 4}), row({8, 16, 32})}),
                   counts = at::cat({mask({1, 0, 1}), mask({1, 1, 0})});
  EXPECT_THAT(penalized_scores(std::vector<OptionalScore>{3, std::nullopt}, kl, counts, 0.5),
              ElementsAre(OptionalScore(0.5), OptionalScore()));
  EXPECT_THAT(penalized_scores(std::vector<OptionalScore>{3, -1}, kl, counts, 0.5),
              ElementsAre(OptionalScore(0.5), OptionalScore(-13)));
}

TEST(OverlongPenalty, HasGoldenValues) {
  std::vector<double> got;
  for (const int64_t tokens : {15, 16, 17, 19, 20, 21}) got.push_back(overlong_penalty(tokens, 20, 4));
  EXPECT_THAT(got, ElementsAre(0, 0, -0.25, -0.75, -1, -1));
  EXPECT_EQ(overlong_penalty(21, 20, 0), 0);
}

TEST(AdaptedKlWeight, FollowsTheTarget) {
  EXPECT_THAT(adapted_kl_weight(0.1, 0.11, 0.1, 128, 1000), digits(0.1 * (1 + 0.1 * 0.128)));
  EXPECT_THAT(adapted_kl_weight(0.1, 9, 0.1, 128, 1000), digits(0.1 * (1 + 0.2 * 0.128)));
  EXPECT_THAT(adapted_kl_weight(0.1, 0, 0.1, 128, 1000), digits(0.1 * (1 - 0.2 * 0.128)));
  EXPECT_EQ(adapted_kl_weight(0.1, 0.1, 0.1, 128, 1000), 0.1);
}

}  // namespace
}  // namespace colossal::align::advantages_test
