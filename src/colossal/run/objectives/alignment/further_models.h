// The further models of the objective alignment: a reference, a value model, a reward model.
#pragma once
#include <vector>

#include "colossal/run/further_model.h"
#include "colossal/run/objective.h"

namespace colossal::run {

/// ObjectiveRow::models of the objective alignment: the reference (reference_models()), with alignment.method ppo the
/// value model unless its head is on the policy, and the reward model if [reward] names one. Errors ("reference",
/// "reward", "value"): keys without effect on the method.
std::vector<FurtherModel> alignment_models(const Config& config, const OwnTables& tables,
                                           const models::ModelShape& shape);

}  // namespace colossal::run
