// The objective alignment: alignment.method chooses one of the methods.
#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/alignment/policy_objective.h"
#include "colossal/run/objectives/built_in.h"

namespace colossal::run {
namespace {

struct AlignmentMethod {
  const char* name;  ///< as alignment.method
  std::unique_ptr<Objective> (*make)(const Config&, const OwnTables&, const models::ModelShape&);
};

constexpr AlignmentMethod kMethods[] = {{"sft", make_fine_tuning},
                                        {"dpo", make_dpo},
                                        {"ipo", make_ipo},
                                        {"kto", make_kto},
                                        {"simpo", make_simpo},
                                        {"orpo", make_orpo},
                                        {"reward", make_reward},
                                        {"ppo", make_ppo},
                                        {"grpo", make_grpo},
                                        {"rloo", make_rloo},
                                        {"reinforce++", make_reinforce}};

}  // namespace

std::unique_ptr<Objective> make_alignment(const Config& config, const OwnTables& tables,
                                          const models::ModelShape& shape) {
  const auto keys = tables.as<AlignmentKeys>("alignment");
  check_method_keys(keys);
  const std::string& name = keys.method;
  const auto* method =
      std::find_if(std::begin(kMethods), std::end(kMethods), [&](const auto& row) { return row.name == name; });
  require(method != std::end(kMethods), "alignment", "method must be one of the library: got ", name);
  return method->make(config, tables, shape);
}

}  // namespace colossal::run
