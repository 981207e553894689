// The step of methods that learn from scores of the model's own answers: answers are drawn and scored, then the policy
// is updated alignment.epochs x mini_batches times.
//
//   row.step_rule = [](train::Engine& engine, const run::Config& config, const run::OwnTables& tables) {
//     return make_policy_rule(engine, config, tables, make_scorer);                  // align/rows.cpp
//   };
#pragma once
#include <functional>
#include <memory>

#include "colossal/align/rewards/scorer.h"
#include "colossal/run/config.h"
#include "colossal/run/objectives/alignment/policy_objective.h"
#include "colossal/run/own_tables.h"
#include "colossal/train/engine.h"
#include "colossal/train/step_rule.h"

namespace colossal::align {

/// Makes the rule of a run whose objective is a run::PolicyObjective. `make_scorer` is called on rank 0 when the run
/// begins; it returns null if a model alone scores.
///
/// A step takes rollout.prompts prompts, and with alignment.dynamic further ones. It draws the answers, scores them,
/// and passes the rows through the policy (unless its passes are canonical), the reference and the value model without
/// gradients. Then it makes the updates. Every rank computes the advantages of all answers, so they do not depend on
/// the layout. Step n is the one after which n updates were made, as in metrics.jsonl.
///
/// Records:       the answers and scores of a step are in the run folder (RolloutRecords) before its first update.
///                Draws depend on (seed, step, prompt, number) and the weights, whose history a digest names: so a run
///                that was killed continues with the answers that it had drawn, bit for bit.
/// Ahead:         with rollout.ahead = k a step trains on answers that were drawn k steps before. A checkpoint has the
///                answers that wait.
/// Measured steps, and those on meta, train answers of full length without drawing or scoring. They hold the panels and
/// the cache of drawing first.
/// Communication: that of RolloutEngine, gathered_results() and train::Engine::train_step(); two all_reduces of
/// metrics.
/// Errors:        those of RolloutEngine and the scorer. No update of the step was made then.
std::unique_ptr<train::StepRule> make_policy_rule(train::Engine& engine, const run::Config& config,
                                                  const run::OwnTables& tables,
                                                  std::function<std::unique_ptr<Scorer>()> make_scorer);

}  // namespace colossal::align
