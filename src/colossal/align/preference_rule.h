// The step of preference training: the reference's log-probabilities become a field of each batch, then there is one
// update.
//
//   program.objectives.at("alignment").step_rule = align::make_rule;       // align/rows.h does it
#pragma once
#include <memory>

#include "colossal/run/config.h"
#include "colossal/run/own_tables.h"
#include "colossal/train/engine.h"
#include "colossal/train/step_rule.h"

namespace colossal::align {

/// Makes the rule of a run with the objective alignment. Methods without preferences get train::OneUpdate.
///
/// A step takes one batch and makes one update. It adds the fields that the objective names
/// (run/objectives/alignment/methods.h), also to held-out batches, and the metrics of
/// run::PreferenceObjective::step_metrics(). The sums of the reference are those of a pass through it without
/// gradients, or are found in reference.cache. For kto a pass without gradients through the policy gives z.
///
/// The first loss of a new run must be that of a policy that equals the reference (PreferenceObjective::first_loss), if
/// it starts at the reference. It is not checked for models whose experts drop tokens (experts.capacity), because
/// training alone drops them.
///
/// Communication: that of Engine::with_result() for each pass and of Engine::train_step(). Over "pipeline" and the axes
///                that split rows an all_reduce of at most 7 numbers, for metrics. kto: one of 16 bytes over the axes
///                that split rows. With reference.precompute, comm::agree() over all ranks.
/// Errors ("reference"), on all ranks: a reference of another architecture, shape or vocabulary; a text that is not in
///                the cache. ("alignment"): a first loss that differs by more than rounding; no update is made then.
std::unique_ptr<train::StepRule> make_rule(train::Engine& engine, const run::Config& config,
                                           const run::OwnTables& tables);

}  // namespace colossal::align
