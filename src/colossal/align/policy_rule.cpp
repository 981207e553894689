#include "colossal/align/policy_rule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "colossal/align/policy_advantages.h"
#include "colossal/align/policy_metrics.h"
#include "colossal/align/policy_rows.h"
#include "colossal/align/rollouts/rollout_engine.h"
#include "colossal/base/base64.h"
#include "colossal/base/checksum.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/known_metrics.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/agreement.h"
#include "colossal/data/chats/prompts.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/task_batch.h"
#include "colossal/ops/cpu.h"
#include "colossal/parallel/tensor/config.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/pretraining_data.h"
#include "colossal/run/objectives/alignment/reference.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/run/objectives/alignment/text_scores.h"
#include "colossal/run/objectives/alignment/token_values.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/tensor/host_value.h"
#include "colossal/text/end_tokens.h"

namespace colossal::align {
namespace {

// Keys in the state of the rule
constexpr char kHistory[] = "weights", kKl[] = "kl", kSpare[] = "spare_prompts", kPending[] = "pending",
               kPretraining[] = "pretraining";

/// Returns a digest of the weights of all models, the same on every rank. Cost: memory speed over the weights.
std::string digest_of_weights(train::Engine& engine) {
  Checksum own;
  tensor::Held held;
  for (const checkpoint::NamedTensor& weight : engine.stored_weights()) {
    weight.value.read_into(held);
    const at::Tensor here = held.value.cpu().contiguous();
    own.update(weight.name.data(), weight.name.size());
    own.update(here.const_data_ptr(), here.nbytes());
  }
  std::string all;
  for (const std::string& digest : comm::all_gather_text(engine.mesh().all(), at::kCPU, own.hex())) all += digest;
  return checksum(all);
}

/// A step whose answers were drawn and not trained yet.
struct Pending {
  std::string draws{};                 ///< RolloutDigests::draws
  std::string text{};                  ///< the bytes of its groups in base64; empty for the step that trains now
  std::vector<RolloutGroup> groups{};  ///< what a checkpoint has, until the rollouts continue with them
};

class PolicyRule final : public train::StepRule {
 public:
  PolicyRule(const run::PolicyObjective& objective, const run::Config& config, const run::OwnTables& tables,
             std::function<std::unique_ptr<Scorer>()> make_scorer)
      : objective_(objective),
        reward_(tables.as<run::RewardKeys>(run::kReward)),
        value_(tables.as<run::ValueKeys>(run::kValue)),
        chats_(tables.data<run::ChatKeys>()),
        training_(config.training),
        rows_together_(config.parallel.replicas() * config.micro_batches() *
                       parallel::batch_parts(config.parallel.tensor)),
        arithmetic_(concat(config.precision.mode, ", tensor ", config.parallel.tensor.size, ", ",
                           ops::name(ops::instruction_set()))),
        optimizer_(checksum(concat(to_toml(config.optimizer), to_toml(value_)))),
        kl_(objective.keys().policy.kl),
        make_scorer_(std::move(make_scorer)) {}

  void begin(train::Engine& engine, const train::StartedRun& run) override {
    log_ = &run.log;
    const run::RolloutKeys& keys = objective_.rollout();
    const text::Tokenizer& tokenizer = *run.data.tokenizer;
    std::vector<int64_t> ends = run.data.end_ids;
    RolloutRun parts{.answers = keys.answers,
                     .folder = RunFolder(run.config.run.folder).rollouts(),
                     .tokenizer = &tokenizer,
                     .log = log_,
                     .model_weight = reward_.from_weight};
    comm::agree(engine.mesh().all(), at::kCPU, [&] {
      const std::string folder = text::folder_of_tokenizer(run.config.tokenizer());
      for (const int64_t id : text::end_ids(folder, tokenizer)) ends.push_back(id);
      if (engine.mesh().world().rank() == 0) parts.scorer = make_scorer_();
    });
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    parts.sampler = {.max_tokens = keys.max_tokens,
                     .temperature = keys.temperature,
                     .end_ids = std::move(ends),
                     .cache_bytes = keys.cache,
                     .seed = training_.seed};
    sampler_ = parts.sampler;
    if (!reward_.from.empty() || !reward_.name.empty())
      parts.model_scores = [this, &engine](const std::vector<RolloutGroup>& groups) {
        return scores_by_model(engine, groups);
      };
    rollouts_ = std::make_unique<RolloutEngine>(engine, std::move(parts));
    if (objective_.keys().policy.ptx <= 0) return;
    comm::agree(engine.mesh().all(), at::kCPU, [&] {
      const int replica = static_cast<int>(run.config.parallel.replica_of(engine.mesh().world().rank()));
      texts_ = run::open_pretraining({run.config, run.data.shape, run.data.tokenizer, "", replica}, chats_);
    });
  }

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    const int64_t updates = objective_.keys().policy.updates(), number = engine.steps_done() + updates;
    if (!rollouts_) {
      hold_memory_of_draws(engine);
      return learn(engine, imitated_groups(objective_, engine.steps_done()));
    }
    Stopwatch watch;
    resume_pending();
    draw_up_to(engine, next, number);
    const double draw_seconds = watch.restart();
    std::vector<RolloutGroup> groups = rollouts_->finish(number);
    const double score_seconds = watch.restart();
    if (objective_.keys().policy.dynamic == "true") replace_groups(engine, next, number, groups);
    const double wave_seconds = watch.restart();
    train::StepOutcome outcome = learn(engine, groups);
    outcome.rows.push_back(known_metric("draw_seconds", draw_seconds + wave_seconds));
    outcome.rows.push_back(known_metric("score_seconds", score_seconds));
    rollouts_->close(number);
    pending_.erase(number);
    if (const int64_t keep = objective_.rollout().keep_steps; keep > 0)
      rollouts_->remove_before(number - (keep - 1) * updates);
    return outcome;
  }

  int64_t cache_bytes() const override { return objective_.rollout().cache; }

  nlohmann::json state() const override {
    nlohmann::json spare = nlohmann::json::array(), pending = nlohmann::json::object();
    for (const data::PromptOfBatch& prompt : spare_) spare.push_back({{"ids", prompt.ids}, {"line", prompt.line}});
    for (const auto& [step, one] : pending_)
      pending[std::to_string(step)] = {{"draws", one.draws}, {"groups", one.text}};
    nlohmann::json state{{kHistory, weights_}, {kKl, kl_}, {kSpare, std::move(spare)}, {kPending, std::move(pending)}};
    if (texts_) state[kPretraining] = texts_->position();
    return state;
  }

  void restore(const nlohmann::json& state) override {
    if (!state.is_object()) return;
    weights_ = state.value(kHistory, "");
    if (objective_.keys().policy.kl_target > 0)
      kl_ = state.value(kKl, kl_);  // otherwise the config may have changed it
    const nlohmann::json spare = state.value(kSpare, nlohmann::json::array());
    for (const nlohmann::json& prompt : spare)
      spare_.push_back({prompt.at("ids").get<std::vector<int64_t>>(), prompt.at("line").get<std::string>()});
    const nlohmann::json pending = state.value(kPending, nlohmann::json::object());
    for (const auto& [step, one] : pending.items()) {
      Pending& drawn = pending_[std::stoll(step)];
      drawn = {.draws = one.at("draws").get<std::string>(), .text = one.at("groups").get<std::string>()};
      const std::optional<std::string> bytes = from_base64(drawn.text);
      require(bytes.has_value(), "checkpoint",
              "the rollouts of the checkpoint must be base64: got other text; resume "
              "from another checkpoint");
      drawn.groups = groups_of(*bytes);
      check_sizes(drawn.groups, step);
    }
    is_resumed_ = !pending_.empty();
    if (texts_ && state.contains(kPretraining)) texts_->seek(state.at(kPretraining));
  }

 private:
  int64_t rows_of_update() const { return training_.batch_size; }

  /// Requires the answers that a checkpoint has of a step to fill the rows of its updates.
  void check_sizes(const std::vector<RolloutGroup>& groups, const std::string& step) const {
    const run::RolloutKeys& keys = objective_.rollout();
    const auto prompts = static_cast<int64_t>(groups.size());
    const auto answers = static_cast<int64_t>(groups.empty() ? 0 : groups.front().answers.size());
    require(prompts == keys.prompts && answers == keys.answers, "rollout",
            "prompts and answers must be those with which the checkpoint has drawn step ", step, " ahead, ", prompts,
            " and ", answers, ": got ", keys.prompts, " and ", keys.answers, "; restore rollout.prompts and answers");
  }

  /// Returns the digests of a step. The limits of a command change no score, so a run that continues with more time for
  /// it keeps the scores that it has.
  RolloutDigests digests_of(const std::string& draws) const {
    run::RewardKeys keys = reward_;
    const run::RewardKeys any;
    keys.workers = any.workers, keys.timeout = any.timeout, keys.retries = any.retries, keys.on_fault = any.on_fault;
    return {.draws = draws, .scores = checksum(to_toml(keys))};
  }

  /// Returns the digest of all that draws depend on now.
  std::string draws_now(train::Engine& engine) {
    if (weights_.empty()) weights_ = digest_of_weights(engine);
    return digest_of({{"weights", weights_},
                      {"seed", training_.seed},
                      {"max_tokens", sampler_.max_tokens},
                      {"temperature", sampler_.temperature},
                      {"end_ids", sampler_.end_ids},
                      {"canonical", objective_.is_canonical()},
                      {"arithmetic", arithmetic_}});
  }

  std::vector<RolloutPrompt> take_prompts(const NextBatch& next, int64_t first, int64_t count) {
    std::vector<RolloutPrompt> prompts;
    while (static_cast<int64_t>(prompts.size()) < count) {
      if (spare_.empty())
        for (data::PromptOfBatch& prompt : data::prompts_of(next())) spare_.push_back(std::move(prompt));
      prompts.push_back({.index = first + static_cast<int64_t>(prompts.size()),
                         .ids = std::move(spare_.front().ids),
                         .line = std::move(spare_.front().line)});
      spare_.pop_front();
    }
    return prompts;
  }

  /// Gives the scorer the answers that an earlier start of the run has drawn ahead.
  void resume_pending() {
    if (!std::exchange(is_resumed_, false)) return;
    for (auto& [step, one] : pending_) rollouts_->restore(step, std::exchange(one.groups, {}), digests_of(one.draws));
  }

  /// Draws the answers of this step and of those ahead with the weights of now, unless they were drawn before.
  void draw_up_to(train::Engine& engine, const NextBatch& next, int64_t number) {
    const int64_t updates = objective_.keys().policy.updates(), ahead = objective_.rollout().ahead;
    // A step that a changed number of updates moves past the end is drawn, too.
    const int64_t last = std::max(number, std::min(number + ahead * updates, training_.steps));
    for (int64_t step = number; step <= last; step += updates) {
      if (pending_.contains(step)) continue;
      const std::string draws = draws_now(engine);
      rollouts_->draw(step, take_prompts(next, 0, objective_.rollout().prompts), digests_of(draws));
      // Encoded once, because every step asks for the state.
      pending_[step] = {.draws = draws, .text = step == number ? "" : base64(bytes_of(rollouts_->drawn(step)))};
    }
  }

  /// Replaces groups whose answers all have one score by those of further prompts (alignment.dynamic).
  void replace_groups(train::Engine& engine, const NextBatch& next, int64_t number, std::vector<RolloutGroup>& groups) {
    int64_t index = objective_.rollout().prompts;
    const std::string draws = draws_now(engine);
    for (int64_t wave = 0; wave < objective_.keys().policy.max_waves; ++wave) {
      std::vector<RolloutGroup*> dull;
      for (RolloutGroup& group : groups)
        if (!has_spread(values_of(group.scores))) dull.push_back(&group);
      if (dull.empty()) return;
      const auto count = static_cast<int64_t>(dull.size());
      rollouts_->draw(number, take_prompts(next, index, count), digests_of(draws));
      index += count;
      size_t at = 0;
      for (RolloutGroup& group : rollouts_->finish(number))
        if (group.prompt.index >= index - count && has_spread(values_of(group.scores))) *dull[at++] = std::move(group);
    }
  }

  std::vector<double> scores_by_model(train::Engine& engine, const std::vector<RolloutGroup>& groups) const {
    size_t answers = 0;
    for (const RolloutGroup& group : groups) answers += group.answers.size();
    // Further prompts of alignment.dynamic need not fill the rows of an update.
    std::vector<RolloutGroup> filled = groups;
    for (size_t rows = answers; rows % static_cast<size_t>(rows_of_update()) != 0;
         rows += groups.front().answers.size())
      filled.push_back(groups.front());
    const PolicyRows rows = policy_rows(filled, objective_, /*masks=*/false);
    const at::Tensor scores = gathered_results(
        engine, rows.batch, rows_of_update(), 1,
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
    const int64_t columns = rows.counts.size(1), batch_size = rows_of_update();
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
        update(engine, batch.part(part * rows_of_update(), rows_of_update()), measures, outcome);
        weights_ = checksum(concat(weights_, " ", std::bit_cast<uint64_t>(measures.last_loss()), " ",
                                   std::bit_cast<uint64_t>(outcome.result.gradient_norm), " ",
                                   std::bit_cast<uint64_t>(outcome.result.learning_rate), " ", optimizer_));
      }
    outcome.loss = measures.mean_loss();
    outcome.rows = measures.rows(engine, groups, rows, passes);
    if (keys.kl_target > 0) outcome.rows.push_back(known_metric("kl_weight", kl_));
    outcome.samples = *outcome.tokens / objective_.text_tokens();  // rows end before data.sequence
    *outcome.tokens += rows.drawn;
    adapt_kl(passes, rows);
    if (rollouts_ && engine.mesh().world().rank() == 0) warn(groups, advantages.advantages, engine.steps_done());
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
    if (rollouts_) rollouts_->poll();
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
  run::TrainingConfig training_;
  int64_t rows_together_;   // the rows of an update are a multiple of it
  std::string arithmetic_;  // names what decides on the last bits of draws
  std::string optimizer_;   // digest of the keys by which updates follow from gradients
  double kl_;               // weight of the KL in rewards
  std::function<std::unique_ptr<Scorer>()> make_scorer_;
  const Log* log_ = nullptr;
  SamplerOptions sampler_;
  std::unique_ptr<RolloutEngine> rollouts_;  // null = steps are measured or recorded
  std::string weights_;                      // digest of the history of the weights; empty = not known yet
  std::deque<data::PromptOfBatch> spare_;    // prompts that were read and not used
  std::map<int64_t, Pending> pending_;       // steps that were drawn
  bool is_resumed_ = false;                  // true: pending_ is that of a checkpoint
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
