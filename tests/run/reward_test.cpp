// Reward models: golden losses and gradients, and what is read of a row.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/models/model.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/run/objectives/alignment/preference_objective.h"
#include "colossal/run/objectives/alignment/text_scores.h"
#include "colossal/run/program.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::run::reward_test {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;

/// Golden values are given to 12 digits.
testing::Matcher<double> digits(double want) { return DoubleNear(want, 1e-11 * std::abs(want)); }

std::vector<double> numbers(const at::Tensor& x) {
  const at::Tensor flat = x.detach().to(at::kDouble).contiguous().flatten();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

/// Scores of rows of answers, with margins and the answers that count.
struct Rows {
  at::Tensor scores, margins, counts;
  at::Tensor losses(const at::Tensor& of, double centre = 0) const {
    return reward_losses(of, counts, margins, centre);
  }
  double mean(double centre = 0) const { return losses(scores, centre).mean().item<double>(); }
};

Rows rows_of(const at::Tensor& scores) {
  return {scores, at::zeros({scores.size(0)}, at::kDouble), at::ones(scores.sizes(), at::kLong)};
}
Rows pairs() { return rows_of(at::tensor({0.7, 0.1, -0.2, 0.3}, at::kDouble).view({2, 2})); }
Rows ranking() { return rows_of(at::tensor({1.2, 0.4, -0.3, 0.1}, at::kDouble).view({1, 4})); }

TEST(RewardLoss, HasGoldenValues) {
  EXPECT_THAT(pairs().mean(), digits(0.705782467333));
  EXPECT_THAT(pairs().mean(0.01), digits(0.709032467333));
  Rows with_margins = pairs();
  with_margins.margins = at::tensor({0.5, 0.25}, at::kDouble);
  EXPECT_THAT(with_margins.mean(), digits(0.890633833094));
  EXPECT_THAT(ranking().mean(), DoubleNear(0.4550676358, 5e-11)) << "given to 10 digits";
}

TEST(RewardLoss, HasGoldenGradients) {
  const Rows rows = pairs();
  const at::Tensor variable = rows.scores.clone().requires_grad_();
  rows.losses(variable).mean().backward();
  EXPECT_THAT(numbers(variable.grad()), ElementsAre(digits(-0.177171846887), digits(0.177171846887),
                                                    digits(-0.311229665601), digits(0.311229665601)));
}

// Central differences at distance d are off by the third derivative times d^2 / 6, which is at most 1 for so few
// scores, and by the rounding of the values.
TEST(RewardLoss, HasTheGradientsOfFiniteDifferences) {
  constexpr double kDistance = 1e-5;
  Rows rows = rows_of(at::tensor({1.2, 0.4, -0.3, 0.1, 0.5, -1.0, 7.0, 9.0}, at::kDouble).view({2, 4}));
  rows.margins = at::tensor({0.5, -0.25}, at::kDouble);
  rows.counts[1].narrow(0, 2, 2).zero_();
  const auto loss = [&](const at::Tensor& scores) { return rows.losses(scores, 0.3).sum(); };
  const at::Tensor variable = rows.scores.clone().requires_grad_();
  loss(variable).backward();
  for (int64_t i = 0; i < variable.numel(); ++i) {
    const auto shifted = [&](double by) {
      const at::Tensor moved = rows.scores.clone();
      moved.view({-1})[i] += by;
      return loss(moved).item<double>();
    };
    EXPECT_NEAR(variable.grad().view({-1})[i].item<double>(),
                (shifted(kDistance) - shifted(-kDistance)) / (2 * kDistance), 1e-10)
        << i;
  }
  EXPECT_EQ(variable.grad()[1][3].item<double>(), 0) << "an answer that the row lacks";
}

TEST(RewardLoss, CountsARankingAsTheMeanOfItsPairs) {
  Rows padded = rows_of(at::tensor({1.2, 0.4, -0.3, 0.1, 1e3}, at::kDouble).view({1, 5}));
  padded.counts[0][4] = 0;
  EXPECT_DOUBLE_EQ(padded.mean(0.5), ranking().mean(0.5));
  EXPECT_THAT(numbers(pair_weights(at::tensor({3, 2, 0}, at::kLong).unsqueeze(0))),
              ElementsAre(0, 1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(pair_weights(at::zeros({2, 3}, at::kLong)).abs().sum().item<double>(), 0)
      << "rows that were counted before";
}

TEST(RewardLoss, StaysFiniteFarFromZero) {
  for (const double far : {-1e4, 1e4}) {
    const at::Tensor scores = at::tensor({far, 0.0}, at::kFloat).view({1, 2}).requires_grad_();
    const at::Tensor loss = reward_losses(scores, at::ones({1, 2}, at::kLong), at::zeros({1}), 0);
    loss.sum().backward();
    EXPECT_EQ(loss.item<float>(), far > 0 ? 0 : 1e4f);
    EXPECT_EQ(scores.grad()[0][0].item<float>(), far > 0 ? 0 : -1);
  }
}

ResolvedModel resolved(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"--model.name=gpt2-tiny", "--data.sequence=6", "--alignment.method=reward"});
  return resolve_model(read_given_config(test::source_dir() + "/examples/sft.toml", flags).config, built_in());
}

std::shared_ptr<const PreferenceObjective> objective(const std::vector<std::string>& flags) {
  return std::dynamic_pointer_cast<const PreferenceObjective>(resolved(flags).objective.objective);
}

/// Rows of texts with these scores, which stand at the last token of each text. All other tokens, of padding too, have
/// 1e3. Text i of row b has 2 + (b + i) % 3 tokens.
struct ScoredRows {
  explicit ScoredRows(const std::vector<std::vector<double>>& scores, int64_t room) {
    const auto rows = static_cast<int64_t>(scores.size()), length = 6 * room;
    const at::Tensor ids = at::zeros({rows, length}, at::kLong);
    end = at::full({rows, length, 1}, 1e3, at::kDouble);
    const at::Tensor labels = at::full_like(ids, -100), documents = at::zeros_like(ids);
    const at::Tensor lengths = at::zeros({rows, room}, at::kLong);
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<double>& own = scores[static_cast<size_t>(row)];
      int64_t at = 0, text = 0;
      for (const double score : own) {
        const int64_t size = 2 + (row + text) % 3;
        documents[row].narrow(0, at, size).fill_(text);
        lengths[row][text] = size - 1;
        at += size;
        end[row][at - 1][0] = score;
        ++text;
      }
      documents[row].narrow(0, at, length - at).fill_(text);
    }
    const auto column = [](const at::Tensor& x) { return tensor::Field{x, {tensor::Dim::Row, tensor::Dim::Other}}; };
    const auto token = [](const at::Tensor& x, bool whole = false) {
      return tensor::Field{x, {tensor::Dim::Row, tensor::Dim::Token}, {}, whole};
    };
    batch.add("ids", token(ids));
    batch.add("labels", token(labels));
    batch.add("positions", token(at::zeros_like(ids)));
    batch.add("documents", token(documents, true));
    batch.add("answer_lengths", column(lengths));
    batch.add("margins", column(at::zeros({rows, 1}, at::kFloat)));
  }
  at::Tensor scores(int64_t texts) const { return text_scores(model(), {end}, nn::step_of(batch), texts); }
  static models::Model model() {
    models::Model model;
    model.shape = resolved({}).shape;
    return model;
  }
  tensor::Batch batch;
  at::Tensor end;
};

TEST(RewardObjective, ReadsTheScoreAtTheLastTokenOfEachText) {
  const ScoredRows rows({{0.7, 0.1}, {-0.2, 0.3}}, 2);
  EXPECT_THAT(numbers(rows.scores(2)), ElementsAre(0.7, 0.1, -0.2, 0.3));
  const ScoredRows full({{5, 6, 7}}, 3);  // with padding
  EXPECT_THAT(numbers(full.scores(3)), ElementsAre(5, 6, 7));
  EXPECT_EQ(full.scores(1).sizes(), (std::vector<int64_t>{1, 1}));
  models::Model other = ScoredRows::model();
  other.shape = resolved({"--alignment.method=sft"}).shape;
  EXPECT_THAT(test::thrown_message([&] { text_scores(other, {rows.end}, nn::step_of(rows.batch), 2); }),
              HasSubstr("need a model with a head of outputs"));
}

TEST(RewardObjective, MeasuresPairsAndRankings) {
  const auto method = objective({"--alignment.answers=4"});
  const ScoredRows rows({{1.2, 0.4, -0.3, 0.1}, {0.7, 0.1}, {-0.2, 0.3}}, 4);
  method->check(rows.batch);
  const auto measured = method->measure(ScoredRows::model(), {rows.end}, nn::step_of(rows.batch));
  EXPECT_EQ(method->weight(rows.batch), 3);
  const double want = 0.4550676358 + 2 * 0.705782467333;
  EXPECT_THAT(measured.loss.item<double>(), DoubleNear(want, 1e-10));
  std::map<std::string, double> found;
  for (const Metric& metric : method->step_metrics(numbers(measured.sums), 3)) found[metric.name] = number_of(metric);
  // Of the ranking, 5 of 6 pairs; the better answers of its pairs have 3 x 1.2, 2 x 0.4 and 1 x -0.3.
  EXPECT_NEAR(found.at("preference_accuracy"), (5.0 / 6 + 1 + 0) / 3, 1e-15);
  EXPECT_NEAR(found.at("chosen_reward"), ((3 * 1.2 + 2 * 0.4 - 0.3) / 6 + 0.7 - 0.2) / 3, 1e-15);
  EXPECT_NEAR(found.at("rejected_reward"), ((0.4 - 2 * 0.3 + 3 * 0.1) / 6 + 0.1 + 0.3) / 3, 1e-15);
  EXPECT_NEAR(found.at("margin"), found.at("chosen_reward") - found.at("rejected_reward"), 1e-15);
  EXPECT_THAT(test::thrown_message([&] { objective({})->check(rows.batch); }),
              HasSubstr("answer_lengths must be [B, 2]"));
}

TEST(RewardObjective, CountsNoRowTwice) {
  const ScoredRows rows({{0.7, 0.1}, {-0.2, 0.3}}, 2);
  rows.batch.at("answer_lengths")[1].zero_();
  const auto method = objective({"--alignment.centre=0.01"});
  EXPECT_EQ(method->weight(rows.batch), 1);
  EXPECT_THAT(method->measure(ScoredRows::model(), {rows.end}, nn::step_of(rows.batch)).loss.item<double>(),
              digits(std::log1p(std::exp(-0.6)) + 0.01 * 0.64));
}

TEST(RewardObjective, GivesTheModelAHeadOfOneOutput) {
  const ResolvedModel model = resolved({});
  EXPECT_EQ(model.shape.outputs(), 1);
  EXPECT_TRUE(model.shape.task().scores());
  EXPECT_FALSE(model.shape.task().generates());
  EXPECT_FALSE(model.shape.tied);
  EXPECT_EQ(resolved({"--alignment.method=dpo"}).shape.outputs(), 0);
  EXPECT_EQ(objective({"--alignment.answers=5"})->example(2).at("ids").sizes(), (std::vector<int64_t>{2, 30}));
}

TEST(RewardObjective, RefusesKeysAndModelsThatDoNotFit) {
  const auto refused = [](const std::vector<std::string>& flags) {
    return test::thrown_message([&] { resolved(flags); });
  };
  EXPECT_THAT(refused({"--alignment.beta=0.1"}), HasSubstr("beta needs alignment.method dpo, ipo, kto, simpo or orpo"));
  EXPECT_THAT(refused({"--alignment.method=dpo", "--alignment.centre=1"}),
              HasSubstr("centre needs alignment.method reward"));
  EXPECT_THAT(refused({"--alignment.method=dpo", "--alignment.answers=4"}),
              HasSubstr("answers needs alignment.method reward"));
  EXPECT_THAT(refused({"--alignment.answers=1"}), HasSubstr("alignment.answers"));
  EXPECT_THAT(refused({"--data.answers=everything"}), HasSubstr("answers must be all or last"));
  EXPECT_THAT(refused({"--model.name=bert-tiny"}), AllOf(HasSubstr("alignment"), HasSubstr("fills in masked tokens")));
  EXPECT_THAT(refused({"--reference.precompute=true"}), HasSubstr("precompute needs alignment.method dpo, ipo or kto"));
}

}  // namespace
}  // namespace colossal::run::reward_test
