#include "colossal/run/objectives/alignment/policy_objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/loss_head.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/objectives/alignment/canonical_passes.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/prompt_data.h"
#include "colossal/run/objectives/alignment/token_values.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

using tensor::Dim;

/// Returns a field of a micro-batch on the device and in the dtype of `like`.
at::Tensor field_like(const nn::ForwardContext& step, const char* name, const at::Tensor& like) {
  return step.batch->at(name).to(like.options(), /*non_blocking=*/true);
}

/// Returns what "canonical" and "panels" of [rollout] choose. Errors ("rollout"): true where it is impossible.
std::pair<bool, bool> chosen_passes(const Config& config, const models::ModelShape& shape, const RolloutKeys& keys) {
  const bool panels = keys.panels == "auto" ? default_panels(config) : keys.panels == "true";
  const std::string obstacle = canonical_obstacle(config, shape, panels);
  require(keys.canonical != "true" || obstacle.empty(), "rollout",
          "canonical must be auto or false, because training and drawing cannot have the same bits: got true with ",
          obstacle, "; leave it out, and a pass computes the log-probabilities before the first update");
  return {panels, keys.canonical != "false" && obstacle.empty()};
}

}  // namespace

PolicyObjective::PolicyObjective(const Config& config, const OwnTables& tables, const models::ModelShape& shape,
                                 PolicyMethod method)
    : HeadObjective(config, shape),
      method_(method),
      rollout_(tables.as<RolloutKeys>(kRollout)),
      chats_(tables.data<ChatKeys>()) {
  check_head(shape.task().continues(), "alignment", "continues text", shape);
  const auto given = tables.as<AlignmentKeys>("alignment");
  check_policy_keys(given, rollout_);
  check_prompt_keys(config, chats_);
  keys_ = completed(given, rollout_);
  require(rollout_.max_tokens < config.data.sequence, "rollout",
          "max_tokens must be below data.sequence, which has room for a prompt and its answer: got ",
          rollout_.max_tokens, " of ", config.data.sequence, "; lower it, or raise data.sequence");
  require(rollout_.prompts % config.parallel.data == 0, "rollout",
          "prompts must be divisible by the replicas, which draw answers to them: got ", rollout_.prompts, " for ",
          config.parallel.data);
  require(rollout_.ahead == 0 || keys_.policy.dynamic != "true", "rollout",
          "ahead must be 0 with alignment.dynamic, whose further prompts depend on scores: got ", rollout_.ahead);
  require((keys_.policy.ptx > 0) == !chats_.pretraining.empty(), "alignment",
          "ptx weighs the text of data.pretraining, and needs it: got ptx = ", keys_.policy.ptx,
          " and data.pretraining = \"", chats_.pretraining, "\"; set both or none");
  const double dropout = adapter_keys(config).dropout;
  require(dropout == 0, "adapter",
          "dropout must be 0 with methods that draw answers, whose passes of training and drawing must agree: got ",
          dropout, "; leave adapter.dropout out");
  const auto value = tables.as<ValueKeys>(kValue);
  if (method_.has_values) check_value_keys(value);
  has_value_head_ = method_.has_values && value.is_on_policy();
  value_weight_ = value.weight;
  std::tie(has_panels_, is_canonical_) = chosen_passes(config, shape, rollout_);
}

LossMean PolicyObjective::mean() const {
  const std::string& mean = keys_.policy.mean;
  return mean == "token" ? LossMean::Token : mean == "sequence" ? LossMean::Sequence : LossMean::Constant;
}

KlEstimator PolicyObjective::kl_estimator() const {
  const std::string& name = keys_.policy.kl_estimator;
  if (name == "k1") return KlEstimator::K1;
  if (name == "k2") return KlEstimator::K2;
  return name == "k3" ? KlEstimator::K3 : KlEstimator::K3Plus;
}

OpenedData PolicyObjective::open(const DataRequest& request) const {
  return open_prompts(request, chats_, rollout_.prompts, rollout_.max_tokens, check_line_);
}

int64_t PolicyObjective::row_length(int64_t longest) const {
  const auto& parallel = config().parallel;
  const int64_t parts = 2 * parallel.sequence.size * parallel.tensor.size;
  return std::max(longest, std::min((longest + parts - 1) / parts * parts, config().data.sequence));
}

std::optional<nn::WeightPacking> PolicyObjective::panels() const {
  if (!has_panels_) return std::nullopt;
  return nn::WeightPacking{.keeps_values = true, .in_training = is_canonical_};
}

tensor::Batch PolicyObjective::example(int64_t rows) const {
  tensor::Batch batch = HeadObjective::example(rows);
  const auto add = [&](const char* name, at::ScalarType type) {
    batch.add(name, {at::empty({rows, config().data.sequence}, at::TensorOptions(type).device(at::kMeta)),
                     {Dim::Row, Dim::Other}});
  };
  add(kAnswerCounts, at::kBool);
  for (const char* name : {kOldScores, kSampledScores, kAdvantages}) add(name, at::kFloat);
  if (has_reference()) add(kReferenceScores, at::kFloat);
  if (!method_.has_values) return batch;
  for (const char* name : {kOldValues, kReturns}) add(name, at::kFloat);
  return batch;
}

void PolicyObjective::check(const tensor::Batch& batch) const {
  HeadObjective::check(batch);
  const at::IntArrayRef sizes = batch.at(kAnswerCounts).sizes();
  for (const char* name : {kOldScores, kSampledScores, kAdvantages})
    require(batch.at(name).sizes() == sizes, "data", name, " must have the sizes of answer_counts, ", sizes, ": got ",
            batch.at(name).sizes());
}

int64_t PolicyObjective::tokens(const tensor::Batch& batch, const models::ModelShape& shape) const {
  const at::Tensor lengths = batch.find("lengths");
  return lengths.defined() ? lengths.sum().item<int64_t>() : HeadObjective::tokens(batch, shape);
}

double PolicyObjective::weight(const tensor::Batch& batch) const { return weight_of(batch.at(kAnswerCounts)); }

double PolicyObjective::weight_of(const at::Tensor& counts) const {
  return loss_weight(counts, mean(), rollout_.max_tokens);
}

at::Tensor PolicyObjective::scores(const models::Model& model, const models::States& end,
                                   const nn::ForwardContext& step) const {
  return models::head_of(model)
      .scores(end.at(0), step.batch->at("labels"), step, {.temperature = rollout_.temperature})
      .log_probabilities;
}

at::Tensor PolicyObjective::value_loss_sum(const models::Model& model, const models::States& end,
                                           const nn::ForwardContext& step) const {
  const at::Tensor values = token_values(model, end, step);
  const at::Tensor counts = step.batch->at(kAnswerCounts).to(values.device(), /*non_blocking=*/true);
  const TokenTerms terms = value_losses(values, field_like(step, kOldValues, values),
                                        field_like(step, kReturns, values), counts, keys_.policy.value_clip);
  return loss_sum(terms.losses, counts, LossMean::Token);
}

PolicyObjective::Measured PolicyObjective::measure(const models::Model& model, const models::States& end,
                                                   const nn::ForwardContext& step, double value_scale) const {
  const PolicyKeys& p = keys_.policy;
  const ops::TokenScores scores = models::head_of(model).scores(end.at(0), step.batch->at("labels"), step,
                                                                {.temperature = rollout_.temperature, .entropy = true});
  const at::Tensor& lp = scores.log_probabilities;
  const at::Tensor counts = step.batch->at(kAnswerCounts).to(lp.device(), /*non_blocking=*/true);
  const at::Tensor old = field_like(step, kOldScores, lp), sampled = field_like(step, kSampledScores, lp);
  const PolicyTokens tokens{lp, old, field_like(step, kAdvantages, lp), counts};
  const TokenTerms policy =
      policy_losses(tokens, {.loss = keys_.loss == "cispo" ? PolicyLoss::Cispo : PolicyLoss::Clip,
                             .ratio = p.ratio == "sequence" ? PolicyRatio::Sequence : PolicyRatio::Token,
                             .clip_low = p.clip_low,
                             .clip_high = p.clip_high,
                             .dual_clip = p.dual_clip});
  // With old = sampled all weights are exactly 1.
  at::Tensor terms = policy.losses * importance_weights(old, sampled, p.weight_cap);
  if (p.entropy > 0) terms = terms - p.entropy * scores.entropies;
  if (method_.kl_in_loss && has_reference())
    terms = terms + p.kl * kl_terms(lp, field_like(step, kReferenceScores, lp), kl_estimator());
  at::Tensor loss = loss_sum(terms, counts, mean()), value_loss;
  if (has_value_head_) {
    value_loss = value_loss_sum(model, end, step);
    loss = loss + value_weight_ * value_scale * value_loss;
  }
  const at::NoGradGuard no_grad;
  const auto sum = [&](const at::Tensor& x) { return x.detach().to(at::kDouble).masked_fill(~counts, 0).sum(); };
  // Recorded steps have no values, and LibTorch has no maximum for them.
  const at::Tensor difference = lp.is_meta()
                                    ? at::zeros({}, lp.options().dtype(at::kDouble))
                                    : (lp.detach() - sampled).abs().to(at::kDouble).masked_fill(~counts, 0).max();
  return {loss,
          at::stack({loss.detach().to(at::kDouble), sum(scores.entropies), policy.clipped.sum().to(at::kDouble),
                     counts.sum().to(at::kDouble),
                     value_loss.defined() ? value_loss.detach().to(at::kDouble) : at::zeros_like(difference)}),
          difference};
}

at::Tensor PolicyObjective::loss(const models::Model& model, const models::States& end,
                                 const nn::ForwardContext& step) const {
  return measure(model, end, step).loss;
}

void complete_alignment(Config& config, const OwnTables& tables, std::vector<std::string>& notices) {
  const auto given = tables.as<AlignmentKeys>("alignment");
  if (!draws_answers(given.method)) return;
  const auto rollout = tables.as<RolloutKeys>(kRollout);
  const PolicyKeys policy = completed(given, rollout, &notices).policy;
  require(rollout.rows() % policy.mini_batches == 0, "alignment",
          "mini_batches must divide the answers of a step, rollout.prompts x answers: got ", policy.mini_batches,
          " for ", rollout.rows());
  const int64_t rows = rollout.rows() / policy.mini_batches, updates = policy.updates();
  int64_t& size = config.training.batch_size;
  require(size == TrainingConfig().batch_size || size == rows, "training",
          "batch_size has no effect with alignment.method = \"", given.method, "\", whose updates have the ", rows,
          " answers that [rollout] draws: got ", size, "; leave it out, or set rollout.prompts and answers");
  size = rows;
  const int64_t steps = config.training.steps, below = steps / updates * updates;
  require(steps % updates == 0, "training", "steps counts updates, and must be a multiple of the ", updates,
          " of a step (alignment.epochs x mini_batches): got ", steps, "; the nearest ",
          below > 0 ? concat("are ", below, " and ", below + updates) : concat("is ", updates));
}

}  // namespace colossal::run
