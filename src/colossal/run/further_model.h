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
#include <cstdint>
#include <memory>
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
#include "colossal/text/tokenizer.h"

namespace colossal::run {

class FrozenBase;  // run/frozen_base.h
struct Program;

/// How a run uses a further model.
enum class ModelUse {
  Frozen,   ///< its parameters are constants, which checkpoints leave out
  Trained,  ///< its parameters are trained and saved
  /// It is the main model with its adapters switched off. It has frozen originals of the parameters that train in
  /// addition to the adapters, with the values of a new run; all others are those of the main model
  WithoutAdapters,
  /// It is frozen, and has the shape of the main model and the weights with which a new run starts: those of model.from
  /// with the adapters of adapter.from beside them, or those that are drawn. Its table names no source
  Original,
};

/// A further model, as an objective names it. Its table of the config has its name, and the keys of ModelKeys or other
/// ones. Of those, `from` is the source, `name` a preset with random weights, and the table `optimizer` that of
/// ModelKeys.
struct FurtherModel {
  std::string name{};  ///< letters, digits and _; the parameters and the rows of the model start with it
  ModelUse use = ModelUse::Frozen;
  /// Outputs per token of the head that it needs (models::with_outputs), such as 1 for scores or values; 0 = the head
  /// of its source. It then reads the texts of the main model, and has no dropout. A trained model gets a new head,
  /// which starts at 0, if its source continues text; a frozen one must have the head
  int outputs = 0;
  /// Axes that split it, of "pipeline", "sequence" and "tensor"; none = those of the main model (train::NamedModel)
  std::optional<std::vector<std::string>> axes{};
  /// Source of a frozen model that the objective knows, which then needs no table; empty = that of its table
  std::string from{};
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
  /// Of ModelUse::Original without adapters: how it stores its matrices if the main model has codes of them
  /// (adapter.base); null = as values
  std::shared_ptr<const FrozenBase> base{};
  /// Returns true if its parameters are constants, which checkpoints leave out.
  bool is_constant() const { return model.use == ModelUse::Frozen || model.use == ModelUse::Original; }
  /// Returns its adapter: that of its source, frozen and not saved for a constant model.
  nn::Adapter adapter() const;
};

/// Finds the sources of the models that the objective of a run names, and reads their tables.
/// `config`: that of the run; the keys of its optimizer are the defaults of theirs. `main`: the shape of the main
/// model, whose vocabulary is that of sources that are presets. Errors ("config"): a table without `from` or `name`, or
/// with both; keys that it does not have; an optimizer for a model that is not trained.
///        ("objective"): a model without a table. ("model"): quantized weights of a model that is trained; a source
///        with another number of outputs. As find_source().
std::vector<ResolvedFurther> resolve_further(const Config& config, const std::vector<FurtherModel>& models,
                                             const OwnTables& tables, const models::ModelShape& main,
                                             const Program& program);

/// Checks that the models with FurtherModel::outputs can read the texts of the main model, of `tokens` tokens at most.
/// `tokenizer`: that of the run, which `config` names. Each of its ids must stand for the same in the tokenizer of the
/// source, if the source has one. Cost: reads that tokenizer, unless it is the one of the run.
/// Errors ("model"): a smaller vocabulary; another tokenizer; fewer positions.
void check_texts(const std::vector<ResolvedFurther>& models, const Config& config, const text::Tokenizer& tokenizer,
                 int64_t tokens);

}  // namespace colossal::run
