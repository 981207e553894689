// GRPO (2402.03300): answers are compared with the other answers to their prompt.
#include "colossal/run/objectives/alignment/policy_objective.h"

namespace colossal::run {

std::unique_ptr<Objective> make_grpo(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<PolicyObjective>(
      config, tables, shape,
      PolicyMethod{.advantage = AnswerAdvantage::Group, .kl_in_loss = true, .has_values = false});
}

}  // namespace colossal::run
