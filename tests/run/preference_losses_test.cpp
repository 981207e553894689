// Losses of preferences: golden values, gradients, and numbers at which formulas of peers fail.
#include "colossal/run/objectives/alignment/preference_losses.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "colossal/base/file.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/loss_head.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/alignment/answer_sums.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_objective.h"
#include "colossal/run/program.h"
#include "support/golden_answers.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::preference_losses_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using test::digits;
using test::values;
using Answers = test::GoldenAnswers;

constexpr int64_t kRows = Answers::kRows, kTokens = Answers::kTokens;

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
    for (int64_t i = 0; i < kRows; ++i) {
      const at::Tensor distance = at::zeros({kRows}, at::kDouble).index_fill(0, at::tensor(i), kDistance);
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

/// A head whose hidden states are the log-probabilities of the labels.
class GivenScores final : public nn::LossHead {
 public:
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) override {
    return -scores(hidden, labels, step, {}).log_probabilities.sum();
  }
  at::Tensor found(const at::Tensor&, const at::Tensor& labels, const nn::ForwardContext&) override {
    return (labels == labels).sum();
  }
  ops::TokenScores scores(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext&,
                          const ops::ScoreOptions&) override {
    return {hidden.masked_fill(labels == -100, 0), {}};
  }
  at::Tensor logits(const at::Tensor& hidden, const nn::ForwardContext&) override { return hidden; }
};

/// The objective of a method over the four answers as rows of two texts.
class PreferenceObjectives : public testing::Test {
 protected:
  static ResolvedModel resolved(const std::vector<std::string>& flags) {
    std::vector<std::string> all{"--model.name=gpt2-tiny", "--data.sequence=6"};
    all.insert(all.end(), flags.begin(), flags.end());
    return resolve_model(read_given_config(test::source_dir() + "/examples/sft.toml", all).config, built_in());
  }
  static std::shared_ptr<const PreferenceObjective> objective(std::vector<std::string> flags) {
    return std::dynamic_pointer_cast<const PreferenceObjective>(resolved(flags).objective.objective);
  }
  /// Rows of the texts `first` and `second`, with a token of the prompt before each and padding after both.
  tensor::Batch batch_of(const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
    const auto rows = static_cast<int64_t>(first.size()), length = 2 * kTokens + 3;
    const at::Tensor ids = at::zeros({rows, length}, at::kLong);
    at::Tensor labels = at::full_like(ids, -100), documents = at::full_like(ids, 2);
    hidden = at::full({rows, length}, -1e3, at::kDouble);  // of tokens that do not count
    at::Tensor lengths = at::zeros({rows, 2}, at::kLong), reference = at::zeros({rows, 2}, at::kDouble);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t text = 0, at = 0; text < 2; ++text) {
        const int64_t answer = (text == 0 ? first : second)[static_cast<size_t>(row)];
        const int64_t size = answers.lengths[answer].item<int64_t>();
        documents[row].narrow(0, at, size + 1).fill_(text);
        labels[row].narrow(0, at + 1, size).fill_(1);
        hidden[row].narrow(0, at + 1, size).copy_(answers.lp[answer].narrow(0, 0, size));
        lengths[row][text] = size;
        reference[row][text] = answers.sums(answers.reference)[answer];
        at += size + 1;
      }
    const auto column = [](const at::Tensor& x) { return tensor::Field{x, {tensor::Dim::Row, tensor::Dim::Other}}; };
    const auto token = [](const at::Tensor& x, bool whole = false) {
      return tensor::Field{x, {tensor::Dim::Row, tensor::Dim::Token}, {}, whole};
    };
    tensor::Batch batch;
    batch.add("ids", token(ids));
    batch.add("labels", token(labels));
    batch.add("positions", token(at::zeros_like(ids)));
    batch.add("documents", token(documents, true));
    batch.add("answer_lengths", column(lengths));
    batch.add("mean_answer_length",
              column(at::full({rows, 1}, lengths.select(1, 0).to(at::kDouble).mean().item<double>(), at::kDouble)));
    batch.add(kReferenceScores, column(reference));
    batch.add("desirable", column((at::tensor(first) < 2).to(at::kLong).unsqueeze(1)));
    batch.add(kDivergence, column(at::full({rows, 1}, 0.05, at::kDouble)));
    return batch;
  }
  PreferenceObjective::Measured measured(const PreferenceObjective& objective, const tensor::Batch& batch) const {
    models::Model model;
    model.head = std::make_shared<GivenScores>();
    objective.check(batch);
    return objective.measure(model, {hidden}, nn::step_of(batch));
  }
  double mean(const std::vector<std::string>& flags, const tensor::Batch& batch) const {
    const auto method = objective(flags);
    const double loss = measured(*method, batch).loss.item<double>();
    return loss / method->weight(batch);
  }
  at::Tensor hidden;
  const Answers answers{};
};

TEST_F(PreferenceObjectives, HaveGoldenLosses) {
  const tensor::Batch pairs = batch_of({0, 1}, {2, 3});
  EXPECT_THAT(mean({"--alignment.method=dpo"}, pairs), digits(0.688715229543));
  EXPECT_THAT(mean({"--alignment.method=dpo", "--alignment.smoothing=0.1"}, pairs), digits(0.689618556733));
  EXPECT_THAT(mean({"--alignment.method=dpo", "--alignment.loss=robust", "--alignment.smoothing=0.1"}, pairs),
              digits(0.687586070555));
  EXPECT_THAT(mean({"--alignment.method=dpo", "--alignment.loss=hinge"}, pairs), digits(0.990966728096));
  EXPECT_THAT(mean({"--alignment.method=dpo", "--alignment.nll=0.5"}, pairs),
              digits(0.688715229543 + 0.5 * (12.6434545656818 / 6 + 10.0330869748331 / 4) / 2));
  EXPECT_THAT(mean({"--alignment.method=ipo"}, pairs), digits(24.6877375752));
  EXPECT_THAT(mean({"--alignment.method=ipo", "--alignment.loss=sum"}, pairs), digits(24.1644234803));
  EXPECT_THAT(mean({"--alignment.method=simpo"}, pairs), digits(2.29849607684));
  EXPECT_THAT(mean({"--alignment.method=orpo"}, pairs), digits(2.37872884187));
  EXPECT_THAT(
      mean({"--alignment.method=kto", "--alignment.undesirable_weight=1.33"}, batch_of({0, 1, 2, 3}, {3, 0, 1, 2})),
      digits(0.58023519672));
}

TEST_F(PreferenceObjectives, CountNoRowTwice) {
  tensor::Batch batch = batch_of({0, 1}, {2, 3});
  batch.at("answer_lengths").narrow(0, 1, 1).zero_();
  batch.at("labels").narrow(0, 1, 1).fill_(-100);
  const auto dpo = objective({"--alignment.method=dpo"});
  EXPECT_EQ(dpo->weight(batch), 1);
  EXPECT_THAT(measured(*dpo, batch).loss.item<double>(), digits(0.700865704602));
}

TEST_F(PreferenceObjectives, MeasureRewards) {
  const auto rewards = [&](const std::vector<std::string>& flags, const tensor::Batch& batch) {
    const auto method = objective(flags);
    std::map<std::string, double> found;
    for (const Metric& metric : method->step_metrics(values(measured(*method, batch).sums), method->weight(batch)))
      found[metric.name] = number_of(metric);
    return found;
  };
  const tensor::Batch pairs = batch_of({0, 1}, {2, 3});
  const std::vector<double> ratios = values(answers.sums(answers.lp) - answers.sums(answers.reference));
  const double chosen = 0.1 * (ratios[0] + ratios[1]) / 2, rejected = 0.1 * (ratios[2] + ratios[3]) / 2;
  for (const char* method : {"dpo", "ipo"})
    EXPECT_THAT(
        rewards({std::string("--alignment.method=") + method}, pairs),
        ElementsAre(testing::Pair("chosen_reward", digits(chosen)), testing::Pair("margin", digits(chosen - rejected)),
                    testing::Pair("preference_accuracy", 0.5),  // of the second pair alone
                    testing::Pair("rejected_reward", digits(rejected))))
        << method;
  EXPECT_THAT(rewards({"--alignment.method=simpo"}, pairs)["chosen_reward"],
              digits(2 * (-12.6434545656818 / 6 - 10.0330869748331 / 4) / 2));
  const std::map<std::string, double> of_kto = rewards({"--alignment.method=kto"}, batch_of({0, 1, 2}, {2, 0, 1}));
  EXPECT_THAT(of_kto.at("chosen_reward"), digits(chosen));
  EXPECT_THAT(of_kto.at("rejected_reward"), digits(0.1 * ratios[2]));
  EXPECT_THAT(of_kto.at("divergence"), digits(0.05));
  const std::vector<Metric> held_out = objective({"--alignment.method=dpo"})->metrics({2, 3, 1, 2}, 2);
  std::vector<std::string> names;
  for (const Metric& metric : held_out) names.push_back(metric.name);
  EXPECT_THAT(names, ElementsAre("eval_loss", "eval_chosen_reward", "eval_rejected_reward", "eval_margin",
                                 "eval_preference_accuracy"));
}

TEST_F(PreferenceObjectives, GiveKtoTheRatiosOfMismatchedAnswers) {
  const tensor::Batch batch = batch_of({0, 1}, {2, 3});
  models::Model model;
  model.head = std::make_shared<GivenScores>();
  const std::vector<double> all = values(answers.sums(answers.lp) - answers.sums(answers.reference));
  EXPECT_THAT(values(mismatched_log_ratios(model, {hidden}, nn::step_of(batch))),
              ElementsAre(digits(all[2]), digits(all[3])));
}

TEST_F(PreferenceObjectives, KnowTheFirstLoss) {
  tensor::Batch pairs = batch_of({0, 1, 2}, {2, 3, 0});
  const at::Tensor own = answers.sums(answers.lp).index({at::tensor({0, 2, 1, 3, 2, 0}, at::kLong)}).view({3, 2});
  pairs = pairs.with(kReferenceScores, {own, {tensor::Dim::Row, tensor::Dim::Other}})
              .with(kDivergence, {at::zeros({3, 1}, at::kDouble), {tensor::Dim::Row, tensor::Dim::Other}});
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--alignment.method=dpo"},
           {"--alignment.method=dpo", "--alignment.smoothing=0.2"},
           {"--alignment.method=dpo", "--alignment.smoothing=0.2", "--alignment.loss=robust"},
           {"--alignment.method=dpo", "--alignment.loss=hinge"},
           {"--alignment.method=dpo", "--alignment.nll=0.7"},
           {"--alignment.method=ipo", "--alignment.beta=0.3"},
           {"--alignment.method=kto", "--alignment.desirable_weight=0.7"}}) {
    const auto method = objective(flags);
    const std::optional<double> first = method->first_loss(pairs);
    ASSERT_TRUE(first.has_value());
    EXPECT_THAT(measured(*method, pairs).loss.item<double>(), digits(*first)) << testing::PrintToString(flags);
  }
  EXPECT_FALSE(objective({"--alignment.method=simpo"})->first_loss(pairs).has_value());
}

TEST_F(PreferenceObjectives, NameWhatTheRuleAdds) {
  EXPECT_THAT(objective({"--alignment.method=dpo"})->added_fields(), ElementsAre("reference_scores"));
  EXPECT_THAT(objective({"--alignment.method=kto"})->added_fields(), ElementsAre("reference_scores", "divergence"));
  EXPECT_THAT(objective({"--alignment.method=orpo"})->added_fields(), testing::IsEmpty());
  const auto method = objective({"--alignment.method=dpo"});
  EXPECT_EQ(method->example(3).tokens(), 12);
  EXPECT_EQ(method->text_tokens(), 6);
  EXPECT_THAT(test::thrown_message([&] { method->check(batch_of({0}, {2}).without("reference_scores")); }),
              HasSubstr("reference_scores"));
}

TEST_F(PreferenceObjectives, TrainWithoutDropout) {
  EXPECT_GT(resolved({"--alignment.method=sft", "--model.dropout=0.1"}).shape.dropout, 0);
  const std::string dpo = "--alignment.method=dpo";
  EXPECT_THAT(test::thrown_message([&] { resolved({dpo, "--model.dropout=0.1"}); }), HasSubstr("dropout must be 0"));
  EXPECT_EQ(resolved({dpo, "--model.dropout=0"}).shape.dropout, 0);
  const test::TemporaryFolder folder;
  write_file(folder / "config.json",
             R"({"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2,
                 "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1})");
  const std::string from = "--model.from=" + folder.path();
  EXPECT_EQ(resolved({from}).shape.dropout, 0.1);
  EXPECT_EQ(resolved({dpo, from}).shape.dropout, 0);
}

TEST_F(PreferenceObjectives, AllowASequenceOfAllPositions) {
  const auto checked = [](const std::vector<std::string>& flags) {
    std::vector<std::string> all{"--model.positions=32"};
    all.insert(all.end(), flags.begin(), flags.end());
    const Config config = read_given_config(test::source_dir() + "/examples/sft.toml", all).config;
    return test::thrown_message([&] { check_text(config, resolve_model(config, built_in())); });
  };
  EXPECT_EQ(checked({"--alignment.method=dpo", "--data.sequence=32"}), "");
  EXPECT_THAT(checked({"--alignment.method=dpo", "--data.sequence=33"}), HasSubstr("got 33 of 32"));
}

TEST_F(PreferenceObjectives, RefuseKeysOfOtherMethods) {
  const auto refused = [](const std::vector<std::string>& flags) {
    return test::thrown_message([&] { resolved(flags); });
  };
  const std::string dpo = "--alignment.method=dpo", ipo = "--alignment.method=ipo";
  EXPECT_THAT(refused({"--alignment.beta=1"}), HasSubstr("beta needs another alignment.method than sft"));
  EXPECT_THAT(refused({dpo, "--alignment.noise=5"}), HasSubstr("noise needs alignment.method sft"));
  EXPECT_THAT(refused({dpo, "--alignment.margin=2"}), HasSubstr("margin needs alignment.method simpo"));
  EXPECT_THAT(refused({dpo, "--alignment.desirable_weight=2"}), HasSubstr("desirable_weight needs"));
  EXPECT_THAT(refused({ipo, "--alignment.smoothing=0.1"}), HasSubstr("smoothing needs alignment.method dpo"));
  EXPECT_THAT(refused({ipo, "--alignment.nll=1"}), HasSubstr("nll needs alignment.method dpo"));
  EXPECT_THAT(refused({"--alignment.method=kto", "--alignment.loss=sigmoid"}), HasSubstr("loss needs"));
  EXPECT_THAT(refused({dpo, "--alignment.loss=mean"}), HasSubstr("loss must be sigmoid, robust or hinge"));
  EXPECT_THAT(refused({ipo, "--alignment.loss=hinge"}), HasSubstr("loss must be mean or sum"));
  EXPECT_THAT(refused({dpo, "--alignment.loss=hinge", "--alignment.smoothing=0.1"}), HasSubstr("smoothing needs"));
  EXPECT_THAT(refused({dpo, "--alignment.loss=robust"}), HasSubstr("smoothing must be above 0"));
  EXPECT_THAT(refused({dpo, "--data.answers=everything"}), HasSubstr("answers must be all or last"));
  EXPECT_THAT(refused({dpo, "--model.name=bert-tiny"}), HasSubstr("continues text"));
  EXPECT_THAT(refused({"--alignment.method=kto", "--training.batch_size=1"}), HasSubstr("at least 2"));
}

}  // namespace
}  // namespace colossal::run::preference_losses_test
