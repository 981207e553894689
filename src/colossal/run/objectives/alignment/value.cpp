#include "colossal/run/objectives/alignment/value.h"

#include "colossal/run/objectives/alignment/value_keys.h"

namespace colossal::run {

std::optional<FurtherModel> value_model(const OwnTables& tables) {
  const auto keys = tables.as<ValueKeys>(kValue);
  check_value_keys(keys);
  if (keys.is_on_policy()) return std::nullopt;
  return FurtherModel{.name = kValue, .use = ModelUse::Trained, .outputs = 1};
}

FurtherModel reward_model() { return {.name = "reward", .use = ModelUse::Frozen, .outputs = 1}; }

}  // namespace colossal::run
