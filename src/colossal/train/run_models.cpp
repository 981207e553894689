#include "colossal/train/run_models.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/forward_context.h"
#include "colossal/run/base_codes.h"
#include "colossal/train/step_rule.h"

namespace colossal::train {
namespace {

/// Returns true for a valid name, which is the first part of a dotted path.
bool is_word(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

void check_names(const std::vector<NamedModel>& models) {
  require(!models.empty() && models.front().name.empty(), "model",
          "the first model must be the main one, which has no name: got ",
          models.empty() ? "no model" : models.front().name);
  std::set<std::string> names;
  for (size_t i = 1; i < models.size(); ++i) {
    const std::string& name = models[i].name;
    require(is_word(name), "model",
            "the name of a model beside the main one must have letters, digits and _ alone: got \"", name,
            "\" for model ", i);
    require(name != "model" && name != "optimizer", "model",
            "a model must have another name than what checkpoints call the main model and the optimizer: got ", name,
            "; rename it");
    require(names.insert(name).second, "model", "names of models must differ: got ", name, " twice; rename one");
  }
}

/// The samples of a run for a model that has no loss of its own.
class SamplesAlone final : public run::Objective {
 public:
  explicit SamplesAlone(std::shared_ptr<const run::Objective> of_run) : of_run_(std::move(of_run)) {}
  run::OpenedData open(const run::DataRequest& request) const override { return of_run_->open(request); }
  tensor::Batch example(int64_t rows) const override { return of_run_->example(rows); }
  std::string missing_from(const models::Model&) const override { return "a loss of its own"; }
  void check(const tensor::Batch& batch) const override { of_run_->check(batch); }
  double weight(const tensor::Batch& batch) const override { return of_run_->weight(batch); }
  at::Tensor loss(const models::Model& model, const models::States&, const nn::ForwardContext&) const override {
    check_model(model);
    return {};
  }

 private:
  std::shared_ptr<const run::Objective> of_run_;
};

}  // namespace

distributed::ParallelConfig NamedModel::layout(const distributed::ParallelConfig& parallel) const {
  return axes ? parallel.split_by(*axes) : parallel;
}

RunModels::RunModels(std::vector<NamedModel> models, MakeRule rule)
    : models_(std::move(models)), rule_(std::move(rule)) {
  check_names(models_);
  const NamedModel& main = models_.front();
  require(!main.axes && !main.optimizer && !main.is_main_without_adapters, "model",
          "the main model must have the layout, the optimizer and the adapters of the run: got others; set [parallel] "
          "and [optimizer]");
  for (const NamedModel& model : models_) {
    require(!model.is_main_without_adapters || main.adapter.product, "model",
            "the main model must have adapters that can be switched off: got none for ", model.name,
            "; add an adapter, or give ", model.name, " weights of its own");
    if (model.axes) distributed::ParallelConfig{}.split_by(*model.axes);
  }
}

RunModels RunModels::with_shape(models::ModelShape shape) const {
  std::vector<NamedModel> models = models_;
  models.front().shape = std::move(shape);
  return RunModels(std::move(models), rule_);
}

std::unique_ptr<StepRule> RunModels::make_rule(Engine& engine) const {
  return rule_ ? rule_(engine) : std::make_unique<OneUpdate>();
}

std::shared_ptr<const run::Objective> ConfiguredRun::objective_of(const NamedModel& model) const {
  if (model.is_main_without_adapters) return objective();
  if (model.objective) return model.objective;
  const run::Objectives objectives = run::built_in_objectives();
  if (model.name.empty()) return run::choose_objective(config, objectives, model.shape).objective;
  const std::string name = model.shape.task().objective;
  const auto& rows = objectives.rows();
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& one) { return one.name == name; });
  if (row == rows.end() || model.shape.task().scores()) return std::make_shared<SamplesAlone>(objective());
  // The built-in objective gets default keys, because the tables of the config belong to the run's objective.
  return row->make(config, row->values(), model.shape);
}

RunModels models_of(const run::Config& config, const run::ResolvedModel& run) {
  const bool keeps_codes = run.adapter.treatment && run::keeps_codes(config);
  std::vector<NamedModel> models{
      {.shape = run.shape,
       .objective = run.objective.objective,
       .adapter = keeps_codes ? run::with_base_codes(run.adapter, config.model.from, run.shape) : run.adapter}};
  for (const run::ResolvedFurther& further : run.further)
    models.push_back({.name = further.model.name,
                      .shape = further.source.shape,
                      .adapter = further.adapter(),
                      .axes = further.model.axes,
                      .is_main_without_adapters = further.model.use == run::ModelUse::WithoutAdapters,
                      .optimizer = further.optimizer});
  RunModels::MakeRule rule;
  if (const run::ObjectiveRow& row = run.objective.row; row.step_rule)
    rule = [config, make = row.step_rule, tables = row.values()](Engine& engine) {
      return make(engine, config, tables);
    };
  return RunModels(std::move(models), std::move(rule));
}

}  // namespace colossal::train
