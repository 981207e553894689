// The models of a run: the main one, and others that share its mesh, its budgets and its optimizer.
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

/// A model of a run. The main model comes first and has no name. The names of another one's parameters begin with its
/// name: "reference.blocks.0.attention.qkv.weight".
struct NamedModel {
  std::string name{};  ///< letters, digits and _
  models::ModelShape shape{};
  /// The main model's is that of the run. Its sample says what the stages of a pipeline cost. Null: the built-in
  /// objective that the architecture names
  std::shared_ptr<const run::Objective> objective{};
  nn::Adapter adapter{};  ///< asked by the names that the model has alone; what is frozen has no gradients and states
};

/// Errors ("model"): no model; a main model that is not first or has a name; a name that another model has, or that has
///                   other characters than letters, digits and _; "model" and "optimizer", which are names in
///                   checkpoints.
void check_names(const std::vector<NamedModel>& models);

/// Returns the model's objective, or the built-in one. Errors: those of run::choose_objective().
std::shared_ptr<const run::Objective> objective_of(const run::Config& config, const NamedModel& model);

}  // namespace colossal::train
