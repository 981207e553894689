#include "colossal/align/policy_rule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "colossal/align/policy_advantages.h"
#include "colossal/align/policy_metrics.h"
#include "colossal/align/policy_rows.h"
#include "colossal/align/rollouts/step_rollouts.h"
#include "colossal/base/error.h"
#include "colossal/base/known_metrics.h"
#include "colossal/comm/agreement.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/task_batch.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/pretraining_data.h"
#include "colossal/run/objectives/alignment/reference.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/run/objectives/alignment/text_scores.h"
#include "colossal/run/objectives/alignment/token_values.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/tensor/host_value.h"

namespace colossal::align {
namespace {

// Keys in the state of the rule, beside those of StepRollouts
constexpr char kKl[] = "kl", kPretraining[] = "pretraining";

class PolicyRule final : public train::StepRule {
 public:
  PolicyRule(const run::PolicyObjective& objective, const run::Config& config, const run::OwnTables& tables,
             std::function<std::unique_ptr<Scorer>()> make_scorer)
      : objective_(objective),
        reward_(tables.as<run::RewardKeys>(run::kReward)),
        value_(tables.as<run::ValueKeys>(run::kValue)),
        chats_(tables.data<run::ChatKeys>()),
        rows_of_update_(config.training.batch_size),
        rows_together_(config.parallel.replicas() * config.micro_batches() *
                       parallel::batch_parts(config.parallel.tensor)),
        kl_(objective.keys().policy.kl),
        make_scorer_(std::move(make_scorer)),
        rollouts_(objective, config, reward_, value_) {}

  void begin(train::Engine& engine, const train::StartedRun& run) override {
    log_ = &run.log;
    std::function<std::vector<double>(const std::vector<RolloutGroup>&)> model_scores;
    if (!reward_.from.empty() || !reward_.name.empty())
      model_scores = [this, &engine](const std::vector<RolloutGroup>& groups) {
        return scores_by_model(engine, groups);
      };
    rollouts_.begin(engine, run, make_scorer_, std::move(model_scores));
    if (objective_.keys().policy.ptx <= 0) return;
    comm::agree(engine.mesh().all(), at::kCPU, [&] {
      const int replica = static_cast<int>(run.config.parallel.replica_of(engine.mesh().world().rank()));
      texts_ = run::open_pretraining({run.config, run.data.shape, run.data.tokenizer, "", replica}, chats_);
    });
  }

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    if (!rollouts_.has_begun()) {
      hold_memory_of_draws(engine);
      return learn(engine, imitated_groups(objective_, engine.steps_done()));
    }
    const int64_t number = engine.steps_done() + objective_.keys().policy.updates();
    const StepRollouts::Drawn drawn = rollouts_.of_step(engine, next, number);
    train::StepOutcome outcome = learn(engine, drawn.groups);
    outcome.rows.push_back(known_metric("draw_seconds", drawn.draw_seconds));
    outcome.rows.push_back(known_metric("score_seconds", drawn.score_seconds));
    rollouts_.close(number);
    return outcome;
  }

  int64_t cache_bytes() const override { return objective_.rollout().cache; }

  nlohmann::json state() const override {
    nlohmann::json state = rollouts_.state();
    state[kKl] = kl_;
    if (texts_) state[kPretraining] = texts_->position();
    return state;
  }

  void restore(const nlohmann::json& state) override {
    if (!state.is_object()) return;
    rollouts_.restore(state);
    if (objective_.keys().policy.kl_target > 0)
      kl_ = state.value(kKl, kl_);  // otherwise the config may have changed it
    if (texts_ && state.contains(kPretraining)) texts_->seek(state.at(kPretraining));
  }

 private:
  std::vector<double> scores_by_model(train::Engine& engine, const std::vector<RolloutGroup>& groups) const {
    size_t answers = 0;
    for (const RolloutGroup& group : groups) answers += group.answers.size();
    // Further prompts of alignment.dynamic need not fill the rows of an update.
    std::vector<RolloutGroup> filled = groups;
    for (size_t rows = answers; rows % static_cast<size_t>(rows_of_update_) != 0; rows += groups.front().answers.size())
      filled.push_back(groups.front());
    const PolicyRows rows = policy_rows(filled, objective_, /*masks=*/false);
    const at::Tensor scores = gathered_results(
        engine, rows.batch, rows_of_update_, 1,
        [](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
          return run::text_scores(model, end, step, 1);
        },
        run::kReward);
    return tensor::host_values(scores.narrow(0, 0, static_cast<int64_t>(answers)));
  }

  /// Holds what Sampler::draw() holds, so that measured and recorded steps have its memory, and draws nothing.
  void hold_memory_of_draws(train::Engine& engine) const {
    engine.pack();
    at::empty({cache_bytes()}, at::TensorOptions(at::kByte).device(engine.device()));
    engine.release_panels();
  }

  /// Returns what the models compute of the rows before the first update.
  PolicyPasses passes_of(train::Engine& engine, const PolicyRows& rows, bool is_stale) const {
    const int64_t columns = rows.counts.size(1), batch_size = rows_of_update_;
    const auto scores = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return objective_.scores(model, end, step);
    };
    PolicyPasses passes{.counts = rows.counts, .old = rows.sampled};
    passes.is_old_computed = !objective_.is_canonical() || objective_.rollout().ahead > 0 || is_stale;
    if (passes.is_old_computed) passes.old = gathered_results(engine, rows.batch, batch_size, columns, scores);
    if (objective_.has_reference())
      passes.reference = gathered_results(engine, rows.batch, batch_size, columns, scores, run::kReference);
    if (objective_.method().has_values)
      passes.values = gathered_results(engine, rows.batch, batch_size, columns, run::token_values,
                                       value_.is_on_policy() ? "" : run::kValue);
    return passes;
  }

  /// Makes the updates of a step.
  train::StepOutcome learn(train::Engine& engine, const std::vector<RolloutGroup>& groups) {
    const PolicyRows rows = policy_rows(groups, objective_);
    const PolicyPasses passes = passes_of(engine, rows, has_other_version(groups, engine.steps_done()));
    const PolicyAdvantages advantages = policy_advantages(objective_, groups, passes, kl_);
    tensor::Batch batch = with_field(engine, rows.batch, run::kOldScores, passes.old);
    batch = with_field(engine, batch, run::kSampledScores, rows.sampled);
    batch = with_field(engine, batch, run::kAdvantages, advantages.advantages);
    if (passes.reference.defined()) batch = with_field(engine, batch, run::kReferenceScores, passes.reference);
    if (passes.values.defined()) {
      batch = with_field(engine, batch, run::kOldValues, passes.values);
      batch = with_field(engine, batch, run::kReturns, advantages.returns);
    }
    const run::PolicyKeys& keys = objective_.keys().policy;
    PolicyMeasures measures(objective_);
    train::StepOutcome outcome{.tokens = 0};
    for (int64_t epoch = 0; epoch < keys.epochs; ++epoch)
      for (int64_t part = 0; part < keys.mini_batches; ++part) {
        update(engine, batch.part(part * rows_of_update_, rows_of_update_), measures, outcome);
        rollouts_.updated(measures.last_loss(), outcome.result);
      }
    outcome.loss = measures.mean_loss();
    outcome.rows = measures.rows(engine, groups, rows, passes);
    if (keys.kl_target > 0) outcome.rows.push_back(known_metric("kl_weight", kl_));
    outcome.samples = *outcome.tokens / objective_.text_tokens();  // rows end before data.sequence
    *outcome.tokens += rows.drawn;
    adapt_kl(passes, rows);
    if (rollouts_.has_begun() && engine.mesh().world().rank() == 0)
      warn(groups, advantages.advantages, engine.steps_done());
    return outcome;
  }

  /// Returns the rows of an update that have gradients, and others where the layout needs more rows. The tokens of the
  /// others do not count, so what an update measures does not depend on the layout.
  tensor::Batch learning_rows(train::Engine& engine, const tensor::Batch& batch) const {
    if (!objective_.learns_from_advantages_alone() || !engine.loss_rows().empty() || engine.device().is_meta())
      return batch;
    const at::Tensor learns = (batch.at(run::kAdvantages) != 0).any(1);
    const auto rows = learns.sum().item<int64_t>();
    const int64_t wanted = std::max(rows_together_, (rows + rows_together_ - 1) / rows_together_ * rows_together_);
    const tensor::Field& counts = batch.field(run::kAnswerCounts);
    const tensor::Batch counted =
        batch.with(run::kAnswerCounts, {counts.tensor.logical_and(learns.unsqueeze(1)), counts.dims});
    if (wanted >= batch.rows()) return counted;
    // Stable, so the rows that learn come first and keep their order.
    const at::Tensor order = at::argsort(learns.logical_not(), /*stable=*/true, 0).narrow(0, 0, wanted);
    return counted.map([&](const tensor::Field& field) { return field.tensor.index_select(0, order); });
  }

  /// Makes an update from the rows of all replicas.
  void update(train::Engine& engine, const tensor::Batch& batch, PolicyMeasures& measures,
              train::StepOutcome& outcome) {
    const at::Tensor& counts = batch.at(run::kAnswerCounts);
    const double weight = objective_.weight_of(counts),
                 value_scale = weight / std::max(run::loss_weight(counts, run::LossMean::Token, 1), 1.0);
    const tensor::Batch learning = learning_rows(engine, batch);
    *outcome.tokens += learning.at("lengths").sum().item<int64_t>();
    const tensor::ReplicaRows own_rows = engine.replica_rows(learning.rows());
    const tensor::Batch own = own_rows.of(learning);
    objective_.check_model(engine.model());
    objective_.check(own);
    engine.zero_grad();
    const double loss =
        engine.train_step(own, own_rows.replica == 0 ? weight : 0,  // also of rows that were left out
                          [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
                            run::PolicyObjective::Measured measured = objective_.measure(model, end, step, value_scale);
                            const at::Tensor result = measured.loss;
                            measures.add(std::move(measured));
                            return result;
                          });
    double value_loss = 0;
    if (objective_.method().has_values && !value_.is_on_policy()) value_loss = train_values(engine, own);
    measures.end_update(loss, value_loss);
    if (texts_) train_texts(engine);
    outcome.result = engine.step();
    rollouts_.poll();
  }

  /// Adds the gradients of a batch of data.pretraining (PPO-ptx).
  void train_texts(train::Engine& engine) const {
    tensor::Batch batch;
    comm::agree(engine.mesh().all(), at::kCPU, [&] {
      batch = texts_->next(engine.tokens_read());
      for (const std::string& notice : texts_->take_notices())
        log_->write(engine.mesh().world().rank() == 0 ? LogLevel::kWarning : LogLevel::kInfo, notice);
      models::check_batch(engine.model().shape, batch);
    });
    const auto loss = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return objective_.keys().policy.ptx * models::loss_sum(model, end.at(0), step);
    };
    engine.train_step(batch, tensor::host_value(models::counted_labels(batch)), loss);
  }

  /// Adds the gradients of the value model, whose loss is a mean over tokens.
  double train_values(train::Engine& engine, const tensor::Batch& own) const {
    const double weight = run::loss_weight(own.at(run::kAnswerCounts), run::LossMean::Token, 1);
    const auto loss = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return objective_.value_loss_sum(model, end, step);
    };
    return engine.train_step(own, weight, loss, run::kValue);
  }

  /// Sets the weight of the KL for the next step.
  void adapt_kl(const PolicyPasses& passes, const PolicyRows& rows) {
    const run::PolicyKeys& keys = objective_.keys().policy;
    if (keys.kl_target <= 0 || !passes.reference.defined()) return;
    const auto answers = rows.batch.rows();
    const double of_answer = tensor::host_value((passes.old - passes.reference).masked_fill(~rows.counts, 0).sum()) /
                             static_cast<double>(answers);
    kl_ = adapted_kl_weight(kl_, of_answer, keys.kl_target, answers, keys.kl_horizon);
  }

  /// Tells users why a loss is 0, which they otherwise take for a fault. Each warning comes once.
  void warn(const std::vector<RolloutGroup>& groups, const at::Tensor& advantages, int64_t number) {
    bool all_truncated = true, any_spread = false;
    for (const RolloutGroup& group : groups) {
      any_spread = any_spread || has_spread(values_of(group.scores));
      for (const RolloutAnswer& answer : group.answers) all_truncated = all_truncated && answer.finish_reason != "stop";
    }
    const auto say = [&](const char* kind, const std::string& text) {
      if (warned_.insert(kind).second) log_->warning("step ", number, ": ", text);
    };
    if (all_truncated)
      say("truncated", concat("all answers reached rollout.max_tokens = ", objective_.rollout().max_tokens,
                              " before an end token; raise it"));
    const auto kind = objective_.method().advantage;
    const bool compares = kind == run::AnswerAdvantage::Group || kind == run::AnswerAdvantage::LeaveOneOut;
    const bool is_zero = objective_.learns_from_advantages_alone() && !(advantages != 0).any().item<bool>();
    if (compares && !any_spread && is_zero)
      say("spread",
          "the answers to each prompt all have the same score, so there is nothing to learn and the loss is "
          "0; change [reward] or the prompts, or raise rollout.answers or rollout.temperature");
  }

  const run::PolicyObjective& objective_;
  run::RewardKeys reward_;
  run::ValueKeys value_;
  run::ChatKeys chats_;
  std::unique_ptr<data::BatchReader> texts_;  // reads data.pretraining; null = none
  int64_t rows_of_update_;                    // over all replicas
  int64_t rows_together_;                     // the rows of an update are a multiple of it
  double kl_;                                 // weight of the KL in rewards
  std::function<std::unique_ptr<Scorer>()> make_scorer_;
  const Log* log_ = nullptr;
  StepRollouts rollouts_;
  std::set<std::string> warned_;
};

}  // namespace

std::unique_ptr<train::StepRule> make_policy_rule(train::Engine& engine, const run::Config& config,
                                                  const run::OwnTables& tables,
                                                  std::function<std::unique_ptr<Scorer>()> make_scorer) {
  const auto* policy = dynamic_cast<const run::PolicyObjective*>(&engine.objective());
  require(policy != nullptr, "alignment", "the rule of rollouts needs an objective that draws answers: got another");
  const int64_t rows = policy->rollout().rows() / policy->keys().policy.mini_batches;
  require(config.training.batch_size == rows, "training", "batch_size must be the number of answers of an update, ",
          rows, ": got ", config.training.batch_size,
          "; call run::complete_keys() for a config that no command has read");
  return std::make_unique<PolicyRule>(*policy, config, tables, std::move(make_scorer));
}

}  // namespace colossal::align
