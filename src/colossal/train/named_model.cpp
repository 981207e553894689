#include "colossal/train/named_model.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "colossal/base/error.h"

namespace colossal::train {
namespace {

/// Returns true for a valid name, which is the first part of a dotted path.
bool is_word(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

}  // namespace

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

std::shared_ptr<const run::Objective> objective_of(const run::Config& config, const NamedModel& model) {
  if (model.objective) return model.objective;
  if (model.name.empty()) return run::choose_objective(config, run::built_in_objectives(), model.shape).objective;
  // The built-in objective gets default keys, because the tables of the config belong to the run's objective.
  const run::Objectives objectives = run::built_in_objectives();
  const run::ObjectiveRow& row = objectives.at(model.shape.task().objective);
  return row.make(config, row.keys, model.shape);
}

}  // namespace colossal::train
