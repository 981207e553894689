// The objectives of preferences: their losses and rewards over batches, their first losses, and the keys of each
// method.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>

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

namespace colossal::run::preference_objectives_test {
namespace {

using test::digits;
using test::values;
using testing::ElementsAre;
using testing::HasSubstr;
using Answers = test::GoldenAnswers;

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
    const auto rows = static_cast<int64_t>(first.size()), length = 2 * Answers::kTokens + 3;
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
  EXPECT_THAT(refused({"--alignment.beta=1"}), HasSubstr("beta needs alignment.method dpo, ipo, kto, simpo or orpo"));
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
}  // namespace colossal::run::preference_objectives_test
