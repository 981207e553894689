// The advantages of a step by the keys of a config: golden values, penalties, answers without a score, and answers that
// do not count.
#include "colossal/align/policy_advantages.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "align/policy_runs.h"
#include "colossal/align/policy_rows.h"
#include "support/golden_answers.h"

namespace colossal::align::policy_advantages_test {
namespace {

using test::digits;
using test::values;
using testing::Each;
using testing::ElementsAre;
using testing::Pointwise;

/// A step whose answers are the golden ones: one group of four, or two of two.
class StepAdvantages : public PolicyRuns {
 protected:
  /// The objective of a config, and advantages by it.
  struct Step {
    std::shared_ptr<const run::Objective> objective;
    std::vector<RolloutGroup> groups;
    const run::PolicyObjective& policy() const { return dynamic_cast<const run::PolicyObjective&>(*objective); }
  };
  Step step(const std::string& method, const std::vector<OptionalScore>& scores,
            const std::vector<std::string>& flags = {}, int64_t answers = 4) const {
    const std::vector<std::string> own{concat("--rollout.prompts=", 4 / answers), concat("--rollout.answers=", answers),
                                       "--rollout.max_tokens=6", "--training.batch_size=4"};
    run::ResolvedModel model = run::resolve_model(policy("one", test::joined(own, flags), method), program());
    Step step{std::move(model.objective.objective), {}};
    const std::vector<int64_t> lengths = [&] {
      const int64_t* first = golden.lengths.const_data_ptr<int64_t>();
      return std::vector<int64_t>(first, first + golden.lengths.numel());
    }();
    for (size_t i = 0; i < 4; ++i) {
      const auto number = static_cast<int64_t>(i) % answers, prompt = static_cast<int64_t>(i) / answers;
      if (number == 0) step.groups.push_back({.prompt = {.index = prompt, .ids = {65}, .line = "{}"}});
      const auto tokens = static_cast<size_t>(lengths[i]);
      step.groups.back().answers.push_back({.prompt = prompt,
                                            .number = number,
                                            .finish_reason = tokens == 6 ? "length" : "stop",
                                            .ids = std::vector<int64_t>(tokens, 66),
                                            .log_probabilities = std::vector<double>(tokens, -1)});
      step.groups.back().scores.push_back({.value = scores[i]});
    }
    return step;
  }
  /// Advantages with the golden log-probabilities before the first update, reference and values.
  PolicyAdvantages advantages(const Step& step, double kl, const at::Tensor& counts) const {
    PolicyPasses passes{.counts = counts, .old = golden.old};
    if (step.policy().has_reference()) passes.reference = golden.reference;
    if (step.policy().method().has_values) passes.values = golden.old_values;
    return policy_advantages(step.policy(), step.groups, passes, kl);
  }
  PolicyAdvantages advantages(const Step& step) const {
    return advantages(step, step.policy().keys().policy.kl, golden.counts);
  }
  /// Returns the first column, after a check that all tokens of an answer have its advantage.
  std::vector<double> of_answers(const at::Tensor& advantages) const {
    const at::Tensor want = advantages.narrow(1, 0, 1).expand_as(golden.counts).masked_fill(~golden.counts, 0);
    EXPECT_TRUE(at::equal(advantages, want));
    return values(advantages.select(1, 0));
  }
  /// Returns the columns that a row of policy_rows() counts, without the prompt's.
  static std::vector<double> counted(const Step& step) {
    const PolicyRows rows = policy_rows(step.groups, step.policy());
    EXPECT_EQ(rows.counts.narrow(1, 6, rows.counts.size(1) - 6).sum().item<int64_t>(), 0);
    return values(rows.counts.sum(1));
  }
  static double at(const at::Tensor& x, int64_t row, int64_t token) { return x[row][token].item<double>(); }

  const test::GoldenAnswers golden{};
  const std::vector<OptionalScore> of_ppo{1, -0.5, 0.25, 0}, of_group{2, -1, 0, 0.5};
};

// G27 to G33
TEST_F(StepAdvantages, HaveGoldenValuesOfPpo) {
  const Step ppo = step("ppo", of_ppo, {"--value.trunk=policy"});
  const PolicyAdvantages got = advantages(ppo);
  EXPECT_THAT(at(got.returns, 0, 0), digits(0.848585408577));
  EXPECT_THAT(got.returns.sum().item<double>(), digits(4.90039715967));
  const at::Tensor raw = got.returns - golden.old_values.masked_fill(~golden.counts, 0);
  EXPECT_THAT(at(raw, 0, 1), digits(0.421157588957));
  EXPECT_THAT(at(raw, 0, 5), digits(1.22547015008));
  EXPECT_THAT(at(raw, 1, 0), digits(-0.170350103239));
  EXPECT_THAT(raw.sum().item<double>(), digits(3.42081830337));
  EXPECT_THAT(at(got.advantages, 0, 0), digits(0.353189663383));
  EXPECT_THAT(at(got.advantages, 3, 2), digits(-0.282978131382));
  EXPECT_THAT(values(got.advantages.masked_select(~golden.counts)), Each(0));
  // G38: the score stands at the last token alone.
  const Step whole = step("ppo", of_ppo, {"--value.trunk=policy", "--alignment.lambda=1"});
  EXPECT_THAT(at(advantages(whole).returns - golden.old_values, 0, 0), digits(0.547040491798));
}

// G41
TEST_F(StepAdvantages, HaveGoldenValuesOfGroups) {
  EXPECT_THAT(
      of_answers(advantages(step("grpo", of_group)).advantages),
      ElementsAre(digits(1.29989600832), digits(-1.09991200704), digits(-0.29997600192), digits(0.0999920006399)));
  EXPECT_THAT(of_answers(advantages(step("grpo", of_group, {"--alignment.preset=dr-grpo"})).advantages),
              ElementsAre(1.625, -1.375, -0.375, 0.125));
  EXPECT_THAT(of_answers(advantages(step("rloo", of_group, {"--alignment.kl=0"})).advantages),
              ElementsAre(digits(2.16666666667), digits(-1.83333333333), -0.5, digits(0.166666666667)));
  EXPECT_THAT(of_answers(advantages(step("grpo", {1, 0, 5, 5}, {"--alignment.preset=dr-grpo"}, 2)).advantages),
              ElementsAre(0.5, -0.5, 0, 0));
}

// G50 and G51
TEST_F(StepAdvantages, HaveGoldenValuesOfReinforce) {
  const at::Tensor got = advantages(step("reinforce++", of_group)).advantages;
  EXPECT_THAT(at(got, 0, 0), digits(1.24554198633));
  EXPECT_THAT(at(got, 1, 0), digits(-1.29727418632));
  EXPECT_THAT(at(got, 3, 2), digits(-0.0273485603183));
  const std::vector<std::string> group{"--alignment.baseline=group", "--alignment.kl=0"};
  EXPECT_THAT(
      of_answers(advantages(step("reinforce++", of_group, group)).advantages),
      ElementsAre(digits(1.24592828371), digits(-1.29294444536), digits(-0.446653535669), digits(-0.0235080808247)));
}

// The KL is a term of the loss of grpo, and lowers the score of rloo, by the weight of now.
TEST_F(StepAdvantages, SubtractTheDivergenceWhereTheLossHasNone) {
  const std::vector<std::string> kl{"--alignment.kl=0.5"};
  const auto plain = of_answers(advantages(step("grpo", of_group)).advantages);
  EXPECT_EQ(of_answers(advantages(step("grpo", of_group, kl)).advantages), plain);
  const std::vector<double> terms = values(golden.sums(golden.old - golden.reference));
  std::vector<OptionalScore> lowered = of_group;
  for (size_t i = 0; i < 4; ++i) *lowered[i] -= 0.25 * terms[i];
  const auto near = [](const std::vector<double>& want) { return Pointwise(testing::DoubleNear(1e-14), want); };
  EXPECT_THAT(of_answers(advantages(step("rloo", of_group, kl), 0.25, golden.counts).advantages),
              near(of_answers(advantages(step("rloo", lowered, {"--alignment.kl=0"})).advantages)));
  // Other estimators
  const at::Tensor k3 = kl_of_tokens(step("rloo", of_group, {"--alignment.kl_estimator=k3"}).policy(),
                                     {.counts = golden.counts, .old = golden.lp, .reference = golden.reference});
  EXPECT_THAT(k3.sum().item<double>() / 18, digits(0.0101053666681));
}

// G52: the answer of 6 tokens reaches max_tokens, that of 5 is one below it.
TEST_F(StepAdvantages, ContainThePenaltyOfLongAnswers) {
  const Step long_ones = step("grpo", of_group, {"--alignment.preset=dr-grpo", "--alignment.overlong=4"});
  EXPECT_THAT(scores_with_penalty(long_ones.policy(), long_ones.groups),
              ElementsAre(OptionalScore(1), OptionalScore(-1.5), OptionalScore(-0.75), OptionalScore(0.25)));
  EXPECT_THAT(of_answers(advantages(long_ones).advantages), ElementsAre(1.25, -1.25, -0.5, 0.5));
  const Step unscored = step("grpo", {std::nullopt, -1, 0, 0.5}, {"--alignment.overlong=4"});
  EXPECT_EQ(scores_with_penalty(unscored.policy(), unscored.groups)[0], std::nullopt);
}

TEST_F(StepAdvantages, LeaveOutAnswersWithoutAScore) {
  const std::vector<OptionalScore> some{2, std::nullopt, 0, 1};
  EXPECT_THAT(of_answers(advantages(step("grpo", some, {"--alignment.preset=dr-grpo"})).advantages),
              ElementsAre(1, 0, -1, 0));
  EXPECT_THAT(of_answers(advantages(step("rloo", some, {"--alignment.kl=0"})).advantages),
              ElementsAre(1.5, 0, -1.5, 0));
  // Their tokens have rewards of the KL alone, so methods of tokens do not train them.
  EXPECT_THAT(counted(step("grpo", some)), ElementsAre(6, 4, 5, 3));
  for (const char* method : {"ppo", "reinforce++"}) {
    const std::vector<std::string> flags =
        std::string(method) == "ppo" ? std::vector<std::string>{"--value.trunk=policy"} : std::vector<std::string>{};
    const Step missing = step(method, some, flags);
    EXPECT_THAT(counted(missing), ElementsAre(6, 0, 5, 3)) << method;
    at::Tensor counts = golden.counts.clone();
    counts[1].fill_(false);
    const PolicyAdvantages got = advantages(missing, 0.05, counts);
    EXPECT_THAT(values(got.advantages[1]), Each(0)) << method;
    const std::vector<double> all = values(got.advantages.masked_select(counts));
    double sum = 0, squares = 0;
    for (const double one : all) sum += one, squares += one * one;
    EXPECT_NEAR(sum, 0, 1e-12) << method << ": the mean is that of counted tokens";
    EXPECT_NEAR(squares, 13, 1e-5) << method;
    if (got.returns.defined()) EXPECT_THAT(values(got.returns[1]), Each(0));
  }
}

TEST_F(StepAdvantages, MaskTruncatedAnswers) {
  for (const char* method : {"grpo", "rloo", "reinforce++"}) {
    EXPECT_THAT(counted(step(method, of_group)), ElementsAre(6, 4, 5, 3));
    EXPECT_THAT(counted(step(method, of_group, {"--rollout.truncated=mask"})), ElementsAre(0, 4, 5, 3));
  }
  // The score of a masked answer stays in the mean of its group.
  at::Tensor counts = golden.counts.clone();
  counts[0].fill_(false);
  const Step masked = step("grpo", of_group, {"--rollout.truncated=mask", "--alignment.preset=dr-grpo"});
  EXPECT_THAT(values(advantages(masked, 0, counts).advantages.select(1, 0)), ElementsAre(0, -1.375, -0.375, 0.125));
}

}  // namespace
}  // namespace colossal::align::policy_advantages_test
