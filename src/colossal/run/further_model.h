// The further models of a run beside its main one: a frozen teacher, a reference, a critic, an encoder of texts.
//
//   program.objectives.add({.name = "distillation",
//                           .tables = {{"distill", DistillKeys{}}, {"teacher", run::ModelKeys{}}},
//                           .make = make_distillation,
//                           .models = [](const run::Config&, const run::OwnTables&, const models::ModelShape&) {
//                             return std::vector<run::FurtherModel>{{.name = "teacher"}};
//                           },
//                           .step_rule = ...});                      // which passes go through them
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/adapter.h"
#include "colossal/optim/config.h"
#include "colossal/run/config.h"
#include "colossal/run/model_source.h"
#include "colossal/run/own_tables.h"

namespace colossal::run {

struct Program;

/// How a run uses a further model.
enum class ModelUse {
  Frozen,           ///< its parameters are constants, which checkpoints leave out
  Trained,          ///< its parameters are trained and saved
  WithoutAdapters,  ///< it is the main model with its adapters switched off, and has no parameters of its own
};

/// A further model, as an objective names it. Its table of the config has its name.
struct FurtherModel {
  std::string name{};  ///< letters, digits and _; the parameters and the rows of the model start with it
  ModelUse use = ModelUse::Frozen;
  /// Axes that split it, of "pipeline", "sequence" and "tensor"; none = those of the main model (train::NamedModel)
  std::optional<std::vector<std::string>> axes{};
};

/// The table of a further model, such as [teacher].
struct ModelKeys {
  std::string from;      ///< source of its weights: see find_source()
  ConfigDocument own{};  ///< the table `optimizer` in it, with the keys of [optimizer]
  void fields(Fields& f);
  bool operator==(const ModelKeys& other) const;
};

/// A further model whose source was found. No weight has been read.
struct ResolvedFurther {
  FurtherModel model;
  ModelSource source;                                 ///< unused for ModelUse::WithoutAdapters
  std::optional<optim::OptimizerConfig> optimizer{};  ///< its own; none = it has no table `optimizer`
  /// Returns its adapter: that of its source, frozen and not saved for ModelUse::Frozen.
  nn::Adapter adapter() const;
};

/// Finds the sources of the models that the objective of a run names, and reads their tables.
/// `of_run`: the optimizer of the run, whose keys are the defaults of their own ones. `vocabulary`: that of the main
/// model, for sources that are presets. Errors ("config"): a table without `from`; keys that it does not have; an
/// optimizer for a model that is not trained.
///        ("objective"): a model without a table of ModelKeys. As find_source().
std::vector<ResolvedFurther> resolve_further(const optim::OptimizerConfig& of_run,
                                             const std::vector<FurtherModel>& models, const OwnTables& tables,
                                             int64_t vocabulary, const Program& program);

}  // namespace colossal::run
