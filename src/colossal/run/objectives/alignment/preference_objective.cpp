#include "colossal/run/objectives/alignment/preference_objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/known_metrics.h"
#include "colossal/models/task_batch.h"
#include "colossal/run/objectives/alignment/answer_sums.h"
#include "colossal/run/objectives/alignment/chat_data.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_losses.h"
#include "colossal/tensor/host_value.h"

namespace colossal::run {
namespace {

using tensor::Dim;

/// Returns true for each row that counts, [B].
at::Tensor counted_rows(const tensor::Batch& batch) { return batch.at("answer_lengths").select(1, 0) > 0; }

/// Errors ("data"): a field that is missing or not [B, columns].
void check_columns(const tensor::Batch& batch, const std::string& name, int64_t columns) {
  const at::Tensor& field = batch.at(name);
  require(field.dim() == 2 && field.size(1) == columns, "data", name, " must be [B, ", columns, "]: got ",
          field.sizes());
}

}  // namespace

at::Tensor mismatched_log_ratios(const models::Model& model, const models::States& end,
                                 const nn::ForwardContext& step) {
  const at::Tensor sums = answer_sums(model, end, step, 2);
  return log_ratios(sums, step.batch->at(kReferenceScores)).narrow(1, 1, 1);
}

PreferenceObjective::PreferenceObjective(const Config& config, const models::ModelShape& shape, AlignmentKeys keys,
                                         ChatKeys chats, data::ChatSamples samples)
    : HeadObjective(config, shape), keys_(std::move(keys)), chats_(std::move(chats)), samples_(samples) {
  const models::Task task = shape.task();
  if (samples == data::ChatSamples::Ranked)
    check_head(task.continues() || shape.outputs() == 1, "alignment", "continues text or has one output", shape);
  else
    check_head(task.continues(), "alignment", "continues text", shape);
  check_chat_keys(config, chats_);
  require(chats_.answers != "everything", "data", "answers must be all or last with alignment.method = \"",
          keys_.method, "\", which compares answers and not their prompts: got everything");
}

OpenedData PreferenceObjective::open(const DataRequest& request) const {
  return open_chats(request, chats_, samples_, room());
}

tensor::Batch PreferenceObjective::example(int64_t rows) const {
  tensor::Batch batch = models::example_batch(shape(), rows, room() * text_tokens());
  const auto add = [&](const char* name, int64_t columns, at::ScalarType type) {
    batch.add(name, {at::empty({rows, columns}, at::TensorOptions(type).device(at::kMeta)), {Dim::Row, Dim::Other}});
  };
  add("answer_lengths", room(), at::kLong);
  if (samples_ == data::ChatSamples::Pairs) add("mean_answer_length", 1, at::kDouble);
  if (samples_ == data::ChatSamples::Ranked) add("margins", 1, at::kFloat);
  if (samples_ == data::ChatSamples::Rated) add("desirable", 1, at::kLong);
  if (has_reference()) add(kReferenceScores, room(), at::kFloat);
  if (!compares_answers()) add(kDivergence, 1, at::kFloat);
  return batch;
}

int64_t PreferenceObjective::text_tokens() const { return config().data.sequence; }

std::vector<std::string> PreferenceObjective::added_fields() const {
  std::vector<std::string> names;
  if (has_reference()) names.emplace_back(kReferenceScores);
  if (!compares_answers()) names.emplace_back(kDivergence);
  return names;
}

void PreferenceObjective::check(const tensor::Batch& batch) const {
  HeadObjective::check(batch);
  check_columns(batch, "answer_lengths", room());
  check_columns(batch,
                samples_ == data::ChatSamples::Pairs    ? "mean_answer_length"
                : samples_ == data::ChatSamples::Ranked ? "margins"
                                                        : "desirable",
                1);
  for (const std::string& name : added_fields()) check_columns(batch, name, name == kDivergence ? 1 : room());
}

int64_t PreferenceObjective::tokens(const tensor::Batch& batch, const models::ModelShape& shape) const {
  const at::Tensor lengths = batch.find("lengths");
  return lengths.defined() ? lengths.sum().item<int64_t>() : Objective::tokens(batch, shape);
}

double PreferenceObjective::weight(const tensor::Batch& batch) const {
  return tensor::host_value(counted_rows(batch).sum());
}

at::Tensor PreferenceObjective::scores_of(const models::Model& model, const models::States& end,
                                          const nn::ForwardContext& step) const {
  return answer_sums(model, end, step, texts());
}

PreferenceObjective::Measured PreferenceObjective::measure(const models::Model& model, const models::States& end,
                                                           const nn::ForwardContext& step) const {
  const tensor::Batch& batch = *step.batch;
  Scores scores{batch, scores_of(model, end, step), answer_lengths(batch, texts()), {}};
  if (has_reference()) scores.reference = batch.at(kReferenceScores).narrow(1, 0, texts()).to(scores.sums);
  const RowLosses rows = row_losses(scores);
  const at::Tensor counts = counted_rows(batch).to(rows.losses.device());
  const at::Tensor loss = rows.losses.masked_fill(~counts, 0).sum();
  const at::NoGradGuard no_grad;
  const at::Tensor rewards = rows.rewards.detach().to(at::kDouble).masked_fill(~counts.unsqueeze(1), 0);
  std::vector<at::Tensor> sums{loss.detach().to(at::kDouble)};
  if (compares_answers()) {
    const at::Tensor chosen = rewards.select(1, 0), rejected = rewards.select(1, 1);
    const at::Tensor right =
        rows.right.defined() ? rows.right.detach().to(at::kDouble).masked_fill(~counts, 0) : chosen > rejected;
    sums.insert(sums.end(), {chosen.sum(), rejected.sum(), right.sum().to(at::kDouble)});
  } else {
    const at::Tensor reward = rewards.select(1, 0), all = counts.to(at::kDouble);
    const at::Tensor desirable = all * (batch.at("desirable").select(1, 0) != 0).to(at::kDouble);
    sums.insert(sums.end(), {(reward * desirable).sum(), (reward * (all - desirable)).sum(), desirable.sum(),
                             (batch.at(kDivergence).select(1, 0).to(at::kDouble) * all).sum()});
  }
  return {loss, at::stack(sums)};
}

int64_t PreferenceObjective::sums() const { return compares_answers() ? 4 : 5; }

at::Tensor PreferenceObjective::loss(const models::Model& model, const models::States& end,
                                     const nn::ForwardContext& step) const {
  return measure(model, end, step).loss;
}

at::Tensor PreferenceObjective::evaluate(const models::Model& model, const models::States& end,
                                         const nn::ForwardContext& step) const {
  return measure(model, end, step).sums;
}

std::vector<Metric> PreferenceObjective::metrics_of(const std::vector<double>& sums, double weight,
                                                    const std::string& prefix) const {
  const double chosen_rows = compares_answers() ? weight : sums.at(3),
               other_rows = compares_answers() ? weight : weight - sums.at(3);
  const double chosen = mean_of(sums.at(1), chosen_rows), rejected = mean_of(sums.at(2), other_rows);
  std::vector<Metric> rows{known_metric(prefix + "chosen_reward", chosen),
                           known_metric(prefix + "rejected_reward", rejected),
                           known_metric(prefix + "margin", chosen - rejected)};
  rows.push_back(compares_answers() ? known_metric(prefix + "preference_accuracy", mean_of(sums.at(3), weight))
                                    : known_metric(prefix + "divergence", mean_of(sums.at(4), weight)));
  return rows;
}

std::vector<Metric> PreferenceObjective::step_metrics(const std::vector<double>& sums, double weight) const {
  return metrics_of(sums, weight, "");
}

std::vector<Metric> PreferenceObjective::metrics(const std::vector<double>& sums, double weight) const {
  std::vector<Metric> rows = metrics_of(sums, weight, "eval_");
  rows.insert(rows.begin(), known_metric("eval_loss", mean_of(sums.at(0), weight)));
  return rows;
}

}  // namespace colossal::run
