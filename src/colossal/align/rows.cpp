#include "colossal/align/rows.h"

#include <memory>

#include "colossal/align/precompute.h"
#include "colossal/align/preference_rule.h"
#include "colossal/run/objectives/alignment/keys.h"

namespace colossal::align {

run::Program with_alignment(run::Program program) {
  for (const run::ObjectiveRow& one : program.objectives.rows()) {
    if (one.step_rule || one.prepare || one.tables.empty() || !one.tables.front().keys.holds<run::AlignmentKeys>())
      continue;
    run::ObjectiveRow& row = program.objectives.at(one.name);
    const auto known = std::make_shared<const run::Program>(program);
    row.step_rule = make_rule;
    row.prepare = [known](comm::World& world, const run::Config& config, const run::OwnTables& tables,
                          const run::Preparation& how) { precompute(world, config, tables, *known, how); };
  }
  return program;
}

}  // namespace colossal::align
