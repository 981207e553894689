// RLOO (2402.14740): answers are compared with the mean of the others.
#include "colossal/run/objectives/alignment/policy_objective.h"

namespace colossal::run {

std::unique_ptr<Objective> make_rloo(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<PolicyObjective>(
      config, tables, shape,
      PolicyMethod{.advantage = AnswerAdvantage::LeaveOneOut, .kl_in_loss = false, .has_values = false});
}

}  // namespace colossal::run
