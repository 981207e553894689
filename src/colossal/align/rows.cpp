#include "colossal/align/rows.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "colossal/align/policy_rule.h"
#include "colossal/align/precompute.h"
#include "colossal/align/preference_rule.h"
#include "colossal/align/rewards/make_scorer.h"
#include "colossal/align/rewards/verifier_scorer.h"
#include "colossal/base/descriptor.h"
#include "colossal/base/error.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/policy_objective.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"

namespace colossal::align {
namespace {

using Known = std::shared_ptr<const run::Program>;

/// Returns a descriptor of the same socket, which a scorer may close; none if no function scores.
std::optional<Descriptor> socket_of(const run::Program& program) {
  if (!program.reward_function) return std::nullopt;
  Descriptor copy = duplicate_of(*program.reward_function);
  require(copy.is_open(), "reward",
          "the socket of the function that scores answers cannot be used: ", std::strerror(errno));
  return copy;
}

std::unique_ptr<train::StepRule> make_any_rule(const Known& known, train::Engine& engine, const run::Config& config,
                                               const run::OwnTables& tables) {
  if (dynamic_cast<const run::PolicyObjective*>(&engine.objective()) == nullptr)
    return make_rule(engine, config, tables);
  const auto keys = tables.as<run::RewardKeys>(run::kReward);
  return make_policy_rule(engine, config, tables,
                          [known, keys] { return make_scorer(keys, known->verifiers, socket_of(*known)); });
}

/// Makes an objective whose prompts must have what the verifiers of [reward] read.
std::unique_ptr<run::Objective> make_checked(const Known& known, const decltype(run::ObjectiveRow::make)& make,
                                             const run::Config& config, const run::OwnTables& tables,
                                             const models::ModelShape& shape) {
  std::unique_ptr<run::Objective> objective = make(config, tables, shape);
  auto* const policy = dynamic_cast<run::PolicyObjective*>(objective.get());
  if (policy == nullptr) {
    require(!known->reward_function, "reward",
            "a function that scores answers needs a method that draws answers: got alignment.method = \"",
            tables.as<run::AlignmentKeys>("alignment").method, "\"; set another method, or leave the function out");
    return objective;
  }
  const auto keys = tables.as<run::RewardKeys>(run::kReward);
  run::check_scorer_keys(keys, known->reward_function != nullptr);
  if (keys.verifiers.empty()) return objective;
  const auto verifiers = std::make_shared<VerifierScorer>(known->verifiers, keys.verifiers, keys.weights);
  policy->check_lines([verifiers](const text::PromptLine& line) { verifiers->check(line); });
  return objective;
}

}  // namespace

run::Program with_alignment(run::Program program) {
  for (const run::ObjectiveRow& one : program.objectives.rows()) {
    if (one.step_rule || one.prepare || one.tables.empty() || !one.tables.front().keys.holds<run::AlignmentKeys>())
      continue;
    run::ObjectiveRow& row = program.objectives.at(one.name);
    const auto known = std::make_shared<const run::Program>(program);
    row.make = [known, make = row.make](const run::Config& config, const run::OwnTables& tables,
                                        const models::ModelShape& shape) {
      return make_checked(known, make, config, tables, shape);
    };
    row.step_rule = [known](train::Engine& engine, const run::Config& config, const run::OwnTables& tables) {
      return make_any_rule(known, engine, config, tables);
    };
    row.prepare = [known](comm::World& world, const run::Config& config, const run::OwnTables& tables,
                          const run::Preparation& how) { precompute(world, config, tables, *known, how); };
  }
  return program;
}

}  // namespace colossal::align
