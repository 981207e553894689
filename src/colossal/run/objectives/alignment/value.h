// The further models of PPO beside the policy and its reference: a value model and a reward model.
//
//   std::vector<FurtherModel> models = reference_models(config, tables, shape);      // ObjectiveRow::models
//   if (const std::optional<FurtherModel> value = value_model(tables)) models.push_back(*value);
//   models.push_back(reward_model());
#pragma once
#include <optional>

#include "colossal/run/further_model.h"
#include "colossal/run/own_tables.h"

namespace colossal::run {

/// Returns the value model of a run with the table [value]: a trained model with one output, which starts from
/// value.from. None = the values are those of a head on the policy. Errors ("value"): those of check_value_keys().
std::optional<FurtherModel> value_model(const OwnTables& tables);

/// Returns the model of the table [reward], whose `from` names a reward model: a frozen model with one output. It is
/// called "reward".
FurtherModel reward_model();

}  // namespace colossal::run
