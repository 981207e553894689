// REINFORCE++ (2501.03262): returns of tokens are whitened over the global batch.
#include "colossal/run/objectives/alignment/policy_objective.h"

namespace colossal::run {

std::unique_ptr<Objective> make_reinforce(const Config& config, const OwnTables& tables,
                                          const models::ModelShape& shape) {
  return std::make_unique<PolicyObjective>(
      config, tables, shape,
      PolicyMethod{.advantage = AnswerAdvantage::Returns, .kl_in_loss = false, .has_values = false});
}

}  // namespace colossal::run
