// The models of a run: the main model, and others that share its mesh, memory budgets and optimizer.
//
//   comm::Mesh mesh(world, config.parallel.axes());
//   const auto engine = train::initialize(
//       mesh, config, {{.shape = policy}, {.name = "reference", .shape = policy, .adapter = nn::frozen()}});
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/nn/adapter.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"

namespace colossal::train {

/// A model of a run. The main model comes first and has no name. The parameter names of any other model start with its
/// name: "reference.blocks.0.attention.qkv.weight".
struct NamedModel {
  std::string name{};  ///< letters, digits and _; empty = the main model
  models::ModelShape shape{};
  /// objective; the main model's is the objective of the run. Its example sample gives the costs of pipeline stages.
  /// Null: the built-in objective that the architecture names
  std::shared_ptr<const run::Objective> objective{};
  nn::Adapter adapter{};  ///< called with parameter names without the model's name; frozen parameters have no gradients
                          ///< and no optimizer states
};

/// Checks the names of models.
/// Errors ("model"): no model; a main model that is not first or has a name; a duplicate name, or one with other
///                   characters than letters, digits and _; "model" and "optimizer", which are prefixes in checkpoints.
void check_names(const std::vector<NamedModel>& models);

/// Returns the model's objective, or the built-in one. Errors: as run::choose_objective().
std::shared_ptr<const run::Objective> objective_of(const run::Config& config, const NamedModel& model);

}  // namespace colossal::train
