// Runs of a language model with values of tokens, which learn returns that follow from rows and positions: a value
// model of its own, or a head of values on the language model.
#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "align/preference_runs.h"
#include "colossal/run/objectives/alignment/policy_losses.h"
#include "colossal/run/objectives/alignment/token_values.h"
#include "colossal/run/objectives/alignment/value.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/train/step_rule.h"
#include "support/thrown_message.h"

namespace colossal::align {

constexpr char kValued[] = "valued", kOldValues[] = "old_values", kReturns[] = "returns";

/// The table [valued], which selects the objective of the runs.
struct ValuedKeys {
  /// from: the run has the frozen model of [reward], too; original, without-adapters: so it has one of that ModelUse
  std::string reward = "none";
  void fields(Fields& f) {
    f.choice("reward", reward, {"none", "from", "original", "without-adapters"}, "reward model");
  }
  bool operator==(const ValuedKeys&) const = default;
};

/// The table [reward] of these runs.
struct RewardTable {
  std::string from, name;
  void fields(Fields& f) {
    f.text("from", from, "reward model");
    f.text("name", name, "preset");
  }
  bool operator==(const RewardTable&) const = default;
};

/// The objective next-token, whose batches also have old values and returns.
class Valued final : public run::Objective {
 public:
  Valued(std::unique_ptr<run::Objective> inner, bool on_policy) : inner_(std::move(inner)), on_policy_(on_policy) {}
  run::OpenedData open(const run::DataRequest& request) const override { return inner_->open(request); }
  tensor::Batch example(int64_t rows) const override {
    tensor::Batch batch = inner_->example(rows);
    for (const char* name : {kOldValues, kReturns})
      batch.add(name, {at::empty({rows, batch.tokens()}, at::dtype(at::kFloat).device(at::kMeta)),
                       {tensor::Dim::Row, tensor::Dim::Other}});
    return batch;
  }
  std::vector<std::string> added_fields() const override { return {kOldValues, kReturns}; }
  std::string missing_from(const models::Model& model) const override { return inner_->missing_from(model); }
  void check(const tensor::Batch& batch) const override { inner_->check(batch); }
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override {
    return inner_->tokens(batch, shape);
  }
  double weight(const tensor::Batch& batch) const override { return inner_->weight(batch); }
  at::Tensor loss(const models::Model& model, const models::States& end,
                  const nn::ForwardContext& step) const override {
    return inner_->loss(model, end, step);
  }
  bool values() const override { return on_policy_; }

 private:
  std::unique_ptr<run::Objective> inner_;
  bool on_policy_;
};

/// Two updates of each batch: of the language model, and of the values towards the returns. Those of a head on the
/// language model learn in the second one alone.
class ValuedRule final : public train::StepRule {
 public:
  ValuedRule(bool has_reward, const run::ValueKeys& keys)
      : has_reward_(has_reward), weight_(keys.weight), model_(keys.is_on_policy() ? "" : run::kValue) {}

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    const tensor::Batch batch = with_fields(engine, next());
    train::StepOutcome outcome;
    double value_loss = 0;
    for (int i = 0; i < 2; ++i) {
      engine.zero_grad();
      if (!model_.empty()) value_loss = engine.train_step(batch, weight_of(batch), value_loss_of, model_);
      outcome.loss = model_.empty() && i == 1
                         ? engine.train_step(batch, engine.objective().weight(batch), joint_loss(engine.objective()))
                         : engine.train_step(batch);
      outcome.result = engine.step();
    }
    // Rank 0 has the first row in every layout.
    outcome.rows = {{.name = "loss_of_values", .value = value_loss},
                    {.name = "first_value", .value = batch.at(kOldValues)[0][3].item<double>()}};
    if (has_reward_) outcome.rows.push_back({.name = "first_reward", .value = first_reward(engine, batch)});
    return outcome;
  }

  tensor::Batch with_fields(train::Engine& engine, const tensor::Batch& batch) override {
    const int64_t rows = engine.mesh().group(engine.mesh().coordinates().row_axes()).size() * batch.rows();
    const int64_t tokens = engine.objective().example(1).tokens();
    tensor::Batch all;
    all.add(kReturns, {at::arange(rows * tokens, at::kDouble).mul(0.7).sin().view({rows, tokens}).add(0.3),
                       {tensor::Dim::Row, tensor::Dim::Other}});
    const tensor::Batch given = batch.with(kReturns, engine.replica_rows(rows).of(all).field(kReturns));
    return engine.with_result(given, kOldValues, run::token_values, model_);
  }

 private:
  /// Every token but each fifth one.
  static at::Tensor counts_of(const tensor::Batch& batch) {
    return (at::arange(batch.at(kReturns).size(1)) % 5).ne(0).expand_as(batch.at(kReturns));
  }
  static double weight_of(const tensor::Batch& batch) {
    return run::loss_weight(counts_of(batch), run::LossMean::Token, 0);
  }
  static at::Tensor value_loss_of(const models::Model& model, const models::States& end,
                                  const nn::ForwardContext& step) {
    const tensor::Batch& batch = *step.batch;
    const run::TokenTerms terms = run::value_losses(run::token_values(model, end, step), batch.at(kOldValues),
                                                    batch.at(kReturns), counts_of(batch), 0.2);
    return run::loss_sum(terms.losses, counts_of(batch), run::LossMean::Token);
  }
  train::Engine::Loss joint_loss(const run::Objective& objective) const {
    return [&objective, weight = weight_](const models::Model& model, const models::States& end,
                                          const nn::ForwardContext& step) {
      return objective.loss(model, end, step) + weight * value_loss_of(model, end, step);
    };
  }
  static double first_reward(train::Engine& engine, const tensor::Batch& batch) {
    return engine.with_result(batch, kOldValues, run::token_values, "reward").at(kOldValues)[0][3].item<double>();
  }

  bool has_reward_;
  double weight_;
  std::string model_;
};

/// The program of these runs.
inline run::Program valued_program() {
  run::Program program = run::built_in();
  run::ObjectiveRow row = program.objectives.at("next-token");
  const auto make = row.make;
  row.name = kValued;
  row.tables = {{kValued, ValuedKeys{}}, {run::kValue, run::ValueKeys{}}, {"reward", RewardTable{}}};
  row.make = [make](const run::Config& config, const run::OwnTables& tables, const models::ModelShape& shape) {
    return std::make_unique<Valued>(make(config, tables, shape), tables.as<run::ValueKeys>(run::kValue).is_on_policy());
  };
  row.models = [](const run::Config&, const run::OwnTables& tables, const models::ModelShape&) {
    std::vector<run::FurtherModel> models;
    if (const auto value = run::value_model(tables)) models.push_back(*value);
    const std::string reward = tables.as<ValuedKeys>(kValued).reward;
    if (reward == "from") models.push_back(run::reward_model());
    if (reward == "original") models.push_back({.name = "reward", .use = run::ModelUse::Original});
    if (reward == "without-adapters") models.push_back({.name = "reward", .use = run::ModelUse::WithoutAdapters});
    return models;
  };
  row.step_rule = [](train::Engine&, const run::Config&, const run::OwnTables& tables) {
    return std::make_unique<ValuedRule>(tables.as<ValuedKeys>(kValued).reward == "from",
                                        tables.as<run::ValueKeys>(run::kValue));
  };
  program.objectives.add(std::move(row));
  return program;
}

/// Short runs of a tiny model over bytes.
class ValueRuns : public PreferenceRuns {
 protected:
  void SetUp() override {
    PreferenceRuns::SetUp();
    std::string text;
    for (int i = 0; i < 200; ++i) text += concat("line ", i * 37 % 101, " of a text that can be learnt\n");
    write_file(folder_ / "text.txt", text);
    write_file(folder_ / "valued.toml", "[model]\nname = \"llama-tiny\"\n[data]\ntokenizer = \"bytes\"\n");
  }
  /// A short run of the objective `valued` in the folder `name`, in fp64 on one rank.
  run::Config valued(const std::string& name, const std::vector<std::string>& flags = {}) const {
    const std::vector<std::string> own{"--run.folder=" + (folder_ / name),
                                       "--valued.reward=none",
                                       "--data.path=" + (folder_ / "text.txt"),
                                       "--data.sequence=16",
                                       "--data.documents=joined",
                                       "--optimizer.warmup_steps=0",
                                       "--optimizer.learning_rate=0.01",
                                       "--training.steps=4",
                                       "--training.evaluate_every=4"};
    return test::tiny_config_of(folder_ / "valued.toml", test::joined(own, flags));
  }
  /// Trains a reward model on the lines of preferences, and returns its run folder.
  std::string reward(const std::string& name = "reward", std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), "--alignment.method=reward");
    const run::Config c = config(name, flags);
    train(c);
    return c.run.folder;
  }
  static std::map<std::string, at::Tensor> train_values(const run::Config& c,
                                                        train::Start start = train::Start::Overwrite,
                                                        int64_t stop_after = 0) {
    return train(c, start, stop_after, valued_program());
  }
  static std::string refused(const run::Config& c) {
    return test::thrown_message([&] { run::resolve_run(c, valued_program()); });
  }
};

}  // namespace colossal::align
