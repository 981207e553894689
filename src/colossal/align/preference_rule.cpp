#include "colossal/align/preference_rule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "colossal/align/first_loss.h"
#include "colossal/align/reference_shape.h"
#include "colossal/align/score_cache.h"
#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/run/objectives/alignment/answer_sums.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/preference_objective.h"
#include "colossal/run/objectives/alignment/reference.h"
#include "colossal/run/objectives/alignment/reference_keys.h"
#include "colossal/tensor/host_value.h"

namespace colossal::align {
namespace {

using tensor::Dim;

// Keys in the state of the rule
constexpr char kPrecompute[] = "precompute", kWeights[] = "weights", kRows[] = "batch_size";

at::Tensor sums_of_texts(const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
  return run::answer_sums(model, end, step, kTexts);
}

class PreferenceRule final : public train::StepRule {
 public:
  PreferenceRule(train::Engine& engine, const run::PreferenceObjective& objective, const run::Config& config,
                 const run::OwnTables& tables)
      : objective_(objective),
        keys_(tables.as<run::AlignmentKeys>("alignment")),
        precision_(config.precision.mode),
        batch_size_(config.training.batch_size),
        precomputes_(objective.has_reference() && tables.as<run::ReferenceKeys>(run::kReference).precompute),
        starts_at_reference_(objective.has_reference() && run::starts_at_reference(config, tables)),
        cache_(run::reference_cache(config, tables)) {
    const std::vector<std::string> fields = objective.added_fields();
    adds_divergence_ = std::find(fields.begin(), fields.end(), run::kDivergence) != fields.end();
    const std::vector<std::string> names = engine.model_names();
    const bool has_model = std::find(names.begin(), names.end(), run::kReference) != names.end();
    require(!objective.has_reference() || precomputes_ || has_model, "reference", "alignment.method = \"", keys_.method,
            "\" needs the further model ", run::kReference, ": got a run without; name it in ObjectiveRow::models");
    if (precomputes_ && !engine.device().is_meta())
      comm::agree(engine.mesh().all(), at::kCPU, [&] {
        if (const std::optional<ScoreOrigin> origin = cache_.origin()) {
          weights_ = origin->weights.empty() ? origin->source : origin->weights;
          if (origin->base != ScoreOrigin().base) weights_ += " as " + origin->base;
        }
        cache_.read();  // the folder of a run that starts is renamed after this
      });
    if (has_model && run::reference_of(config, tables).use == run::ModelUse::Frozen)
      check_reference_shape(engine.model(run::kReference).model().shape, engine.model().shape);
  }

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    const bool is_first = engine.steps_done() == 0;
    const tensor::Batch batch = with_fields(engine, next());
    objective_.check_model(engine.model());
    objective_.check(batch);
    std::vector<at::Tensor> measured;
    const auto loss_of = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      auto [loss, sums] = objective_.measure(model, end, step);
      measured.push_back(sums);
      return loss;
    };
    engine.zero_grad();
    const double weight = objective_.weight(batch), loss = engine.train_step(batch, weight, loss_of);
    if (is_first && knows_first_loss(engine)) check_first_loss(engine, batch, loss);
    train::StepOutcome outcome{.loss = loss, .result = engine.step()};
    outcome.rows = rows_of(engine, measured, weight);
    return outcome;
  }

  tensor::Batch with_fields(train::Engine& engine, const tensor::Batch& batch) override {
    if (!objective_.has_reference()) return batch;
    const tensor::Batch scored = precomputes_
                                     ? with_found(engine, batch)
                                     : engine.with_result(batch, run::kReferenceScores, sums_of_texts, run::kReference);
    return adds_divergence_ ? with_divergence(engine, scored) : scored;
  }

  nlohmann::json state() const override {
    nlohmann::json state{{kPrecompute, precomputes_}};
    if (precomputes_) state[kWeights] = weights_, state[kRows] = batch_size_;
    return state;
  }
  void restore(const nlohmann::json& state) override {
    const bool before = state.is_object() && state.value(kPrecompute, false);
    require(before == precomputes_, "reference",
            "reference.precompute must be as at the start of the run, whose reference it keeps: got ",
            precomputes_ ? "true" : "false", "; restore it");
    if (!precomputes_) return;
    require(state.value(kWeights, weights_) == weights_, "reference", cache_.folder(),
            " must have the log-probabilities of the reference with which the run started: got those of another; "
            "restore the folder, or name it with reference.cache");
    const int64_t rows = state.value(kRows, batch_size_);
    require(
        rows == batch_size_, "reference",
        "training.batch_size must be as at the start of a run with reference.precompute, which has the texts of its "
        "batches: got ",
        batch_size_, " and not ", rows, "; restore it");
  }

 private:
  static comm::Group& ranks_of_rows(train::Engine& engine) {
    return engine.mesh().group(engine.mesh().coordinates().row_axes());
  }

  /// Adds z, the mean log-ratio of the mismatched texts of the global batch.
  tensor::Batch with_divergence(train::Engine& engine, const tensor::Batch& batch) const {
    const tensor::Batch own = engine.with_result(batch, run::kDivergence, run::mismatched_log_ratios);
    const tensor::Field& field = own.field(run::kDivergence);
    const at::Tensor counts = batch.at("answer_lengths").select(1, 0) > 0;
    const at::Tensor ratios = field.tensor.select(1, 0).to(at::kDouble);
    const double sum = tensor::host_value(ratios.masked_fill(counts.logical_not().to(ratios.device()), 0).sum());
    at::Tensor totals = at::tensor({sum, tensor::host_value(counts.sum())}, at::kDouble);
    ranks_of_rows(engine).all_reduce(totals, comm::Reduce::Sum).wait();
    const double* values = totals.const_data_ptr<double>();
    const double z = std::max(0.0, run::mean_of(values[0], values[1]));
    return own.with(run::kDivergence, {at::full_like(field.tensor, z), field.dims, field.ignored, field.stays_whole});
  }

  /// Adds the sums of the reference that are in the cache. A recorded step has zeros in their place.
  tensor::Batch with_found(train::Engine& engine, const tensor::Batch& batch) {
    const bool is_recorded = engine.device().is_meta(), is_exact = precision_ == "fp64";
    at::Tensor scores = at::zeros({batch.rows(), kTexts}, at::kDouble);
    comm::agree(engine.mesh().all(), at::kCPU, [&] {
      if (is_recorded) return;
      const std::vector<TextKey> keys = keys_of(batch, kTexts);
      auto* values = scores.mutable_data_ptr<double>();
      for (const TextKey& key : keys) {
        const std::optional<double> score = cache_.find(key);
        require(score.has_value(), "reference", cache_.folder(),
                " must have the reference's log-probabilities of all texts: got a text without; `colossal train` "
                "computes them before the first step");
        *values++ = *score;
      }
    });
    return batch.with(run::kReferenceScores,
                      {scores.to(is_exact ? at::kDouble : at::kFloat).to(engine.device()), {Dim::Row, Dim::Other}});
  }

  /// Returns the metrics of a step from the sums of this rank's micro-batches.
  std::vector<Metric> rows_of(train::Engine& engine, const std::vector<at::Tensor>& measured, double weight) const {
    comm::Mesh& mesh = engine.mesh();
    std::vector<double> values(static_cast<size_t>(objective_.sums()));
    if (!measured.empty()) values = tensor::host_values(at::stack(measured).sum(0));
    values.push_back(weight);
    at::Tensor totals = at::tensor(values, at::kDouble);
    std::vector<std::string> axes = mesh.coordinates().row_axes();
    axes.insert(axes.begin(), "pipeline");
    mesh.group(axes).all_reduce(totals, comm::Reduce::Sum).wait();
    const double* all = totals.const_data_ptr<double>();
    // All stages add the weight of their rows.
    return objective_.step_metrics({all, all + objective_.sums()},
                                   all[objective_.sums()] / static_cast<double>(mesh.size("pipeline")));
  }

  bool knows_first_loss(train::Engine& engine) const {
    return starts_at_reference_ && !engine.device().is_meta() && !drops_tokens(engine.model().shape);
  }

  void check_first_loss(train::Engine& engine, const tensor::Batch& batch, double loss) const {
    const std::optional<double> sum = objective_.first_loss(batch);
    if (!sum) return;
    const double rows = objective_.weight(batch), tokens = tensor::host_value(batch.at("answer_lengths").sum(1).max());
    comm::Group& ranks = ranks_of_rows(engine);
    at::Tensor totals = at::tensor({*sum, rows}, at::kDouble), most = at::tensor({tokens}, at::kDouble);
    ranks.all_reduce(totals, comm::Reduce::Sum).wait();
    ranks.all_reduce(most, comm::Reduce::Max).wait();
    const double* values = totals.const_data_ptr<double>();
    const double known = run::mean_of(values[0], values[1]),
                 slack = first_loss_slack(keys_, token_error(precision_, engine.model().shape), most.item<double>());
    require(std::abs(loss - known) <= slack, "alignment", "the first loss must be ", known,
            ", because the model starts at its reference: got ", loss, ", which rounding (", slack,
            ") does not explain; the reference has other weights, or computes something else than the model");
  }

  const run::PreferenceObjective& objective_;
  run::AlignmentKeys keys_;
  std::string precision_;
  int64_t batch_size_;
  std::string weights_;  // the checksum or the place of the weights in the cache; all ranks have the same
  bool precomputes_, starts_at_reference_, adds_divergence_ = false;
  ScoreCache cache_;
};

}  // namespace

std::unique_ptr<train::StepRule> make_rule(train::Engine& engine, const run::Config& config,
                                           const run::OwnTables& tables) {
  const auto* preferences = dynamic_cast<const run::PreferenceObjective*>(&engine.objective());
  if (preferences == nullptr) return std::make_unique<train::OneUpdate>();
  return std::make_unique<PreferenceRule>(engine, *preferences, config, tables);
}

}  // namespace colossal::align
