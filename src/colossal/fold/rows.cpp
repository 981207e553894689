#include "colossal/fold/rows.h"

#include <string>
#include <vector>

#include "colossal/fold/recycling_rule.h"
#include "colossal/run/objectives/folding/folding_keys.h"

namespace colossal::fold {

run::Program with_folding(run::Program program) {
  std::vector<std::string> names;
  for (const run::ObjectiveRow& one : program.objectives.rows())
    if (!one.step_rule && !one.tables.empty() && one.tables.front().keys.holds<run::FoldingKeys>())
      names.push_back(one.name);
  for (const std::string& name : names) program.objectives.at(name).step_rule = make_recycling_rule;
  return program;
}

}  // namespace colossal::fold
