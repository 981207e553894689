// PPO (1707.06347): advantages of tokens come from a value model.
#include "colossal/run/objectives/alignment/policy_objective.h"

namespace colossal::run {

std::unique_ptr<Objective> make_ppo(const Config& config, const OwnTables& tables, const models::ModelShape& shape) {
  return std::make_unique<PolicyObjective>(
      config, tables, shape,
      PolicyMethod{.advantage = AnswerAdvantage::Values, .kl_in_loss = false, .has_values = true});
}

}  // namespace colossal::run
