// The models of a run: the main model, and others that share its mesh, memory budgets and optimizer.
//
//   comm::Mesh mesh(world, config.parallel.axes());
//   const auto engine = train::initialize(
//       mesh, config, {{.shape = policy}, {.name = "reference", .shape = policy, .adapter = nn::frozen()}});
#pragma once
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/nn/weight_packing.h"
#include "colossal/optim/config.h"
#include "colossal/run/config.h"
#include "colossal/run/data.h"
#include "colossal/run/objective.h"

namespace colossal::train {

class Engine;
class StepRule;

/// A model of a run. The main model comes first and has no name. The parameter names of any other model start with its
/// name: "reference.blocks.0.attention.qkv.weight".
struct NamedModel {
  std::string name{};  ///< letters, digits and _; empty = the main model
  models::ModelShape shape{};
  /// objective; the main model's is the objective of the run. Its example sample gives the costs of pipeline stages.
  /// Null: the built-in objective that the architecture names; if the library has none of that name, and for a model
  /// with outputs, passes without a loss over the samples of the main model
  std::shared_ptr<const run::Objective> objective{};
  nn::Adapter adapter{};  ///< called with parameter names without the model's name; frozen parameters have no gradients
                          ///< and no optimizer states
  /// Axes that split this model, of "pipeline", "sequence" and "tensor"; none = those of the main model. Over the other
  /// ones it is whole on each rank, and the ranks do the same work. Rows are always split over "data" and "expert"
  std::optional<std::vector<std::string>> axes{};
  /// True = the main model with its adapters switched off. It has frozen originals of the parameters that train in
  /// addition to the adapters (declare_originals()), under its name; all others are those of the main model. No other
  /// member but its name counts
  bool is_main_without_adapters = false;
  /// The optimizer that updates its trained parameters; none = the optimizer of the run
  std::optional<optim::OptimizerConfig> optimizer{};
  /// How to pack the weights of linear layers, inside of adapters, for generation by infer::Engine (Engine::pack());
  /// keeps_values must be set. With in_training the passes of this model are canonical (nn/canonical.h). None =
  /// generation multiplies with the values
  std::optional<nn::WeightPacking> panels{};

  /// Returns the layout of the model in a run of that config.
  distributed::ParallelConfig layout(const distributed::ParallelConfig& parallel) const;
};

/// The models of a run, of which there is at least the main one, and the rule by which a step uses them. It converts
/// from the shape of the main model, from one model, or from several.
///
/// Errors of the constructors ("model"): no model; a main model that is not first or has a name; a duplicate name, or
/// one with other characters than letters, digits and _; "model" and "optimizer", which are prefixes in checkpoints; a
/// main model with axes, an optimizer of its own or without its adapters; adapters switched off that the main model
/// does not have; an axis that splits no model.
class RunModels {
 public:
  using MakeRule = std::function<std::unique_ptr<StepRule>(Engine&)>;

  RunModels(models::ModelShape main) : RunModels(NamedModel{.shape = std::move(main)}) {}
  RunModels(NamedModel main) : RunModels(std::vector<NamedModel>{std::move(main)}) {}
  RunModels(std::initializer_list<NamedModel> models) : RunModels(std::vector<NamedModel>(models)) {}
  RunModels(std::vector<NamedModel> models, MakeRule rule = {});

  const NamedModel& main() const { return models_.front(); }
  /// Returns the same models with another shape of the main one.
  RunModels with_shape(models::ModelShape shape) const;
  auto begin() const { return models_.begin(); }
  auto end() const { return models_.end(); }
  size_t size() const { return models_.size(); }
  /// Returns the rule for the steps of `engine`: train::OneUpdate, unless the constructor got another one.
  std::unique_ptr<StepRule> make_rule(Engine& engine) const;

 private:
  std::vector<NamedModel> models_;
  MakeRule rule_;
};

/// A run as its config describes it, before anything of it is built: enough to measure it, to record a step of it on
/// shapes, and to predict it.
struct ConfiguredRun {
  run::Config config;
  RunModels models;

  /// Returns the objective of one of its models, or the one that stands for it (NamedModel::objective). Errors: as
  /// run::choose_objective().
  std::shared_ptr<const run::Objective> objective_of(const NamedModel& model) const;
  /// Returns the objective of the run.
  std::shared_ptr<const run::Objective> objective() const { return objective_of(models.main()); }
  /// Returns the config of the optimizer that updates one of its models.
  const optim::OptimizerConfig& optimizer_of(const NamedModel& model) const {
    return model.optimizer ? *model.optimizer : config.optimizer;
  }
};

/// Returns the models of a run whose config, or whose data (run::RunData), were read, with the rule of its objective.
/// The adapter of the main model keeps the codes of a quantized model.from (run::with_base_codes()).
RunModels models_of(const run::Config& config, const run::ResolvedModel& run);

}  // namespace colossal::train
