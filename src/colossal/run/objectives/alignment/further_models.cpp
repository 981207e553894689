#include "colossal/run/objectives/alignment/further_models.h"

#include "colossal/base/error.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/reference.h"
#include "colossal/run/objectives/alignment/rollout_keys.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/run/objectives/alignment/value.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::run {

std::vector<FurtherModel> alignment_models(const Config& config, const OwnTables& tables,
                                           const models::ModelShape& shape) {
  std::vector<FurtherModel> models = reference_models(config, tables, shape);
  const std::string method = tables.as<AlignmentKeys>("alignment").method;
  const auto reward = tables.as<RewardKeys>(kReward);
  const auto unused = [&](const char* table, bool is_default, const char* need) {
    require(is_default, table, "the table has no effect with alignment.method = \"", method, "\": it needs ", need,
            "; leave [", table, "] out");
  };
  const bool draws = draws_answers(method);
  if (!draws) unused(kRollout, tables.as<RolloutKeys>(kRollout) == RolloutKeys(), "ppo, grpo, rloo or reinforce++");
  if (!draws) unused(kReward, reward == RewardKeys(), "ppo, grpo, rloo or reinforce++");
  if (method != "ppo") unused(kValue, tables.as<ValueKeys>(kValue) == ValueKeys(), "ppo");
  require(method == "ppo" || tables.data<ChatKeys>().pretraining.empty(), "data",
          "pretraining needs alignment.method = \"ppo\" with alignment.ptx: got it with ", method, "; leave it out");
  if (method == "ppo")
    if (const auto value = value_model(tables)) models.push_back(*value);
  if (draws && (!reward.from.empty() || !reward.name.empty())) models.push_back(reward_model());
  return models;
}

}  // namespace colossal::run
