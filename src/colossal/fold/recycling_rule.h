// The step of runs that learn to fold: earlier passes without gradients, then one pass that trains.
//
//   program.objectives.at("folding").step_rule = fold::make_recycling_rule;       // fold/rows.h does it
#pragma once
#include <cstdint>
#include <memory>

#include "colossal/run/config.h"
#include "colossal/run/own_tables.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/engine.h"
#include "colossal/train/step_rule.h"

namespace colossal::fold {

/// Returns the number of passes of a step, from 1 to `most`. A pure function, so all ranks and layouts have the same.
int64_t passes_of_step(uint64_t seed, int64_t step, int64_t most);

/// Returns the batch that pass `passes` - 1 reads, after it ran the passes before on it without gradients: the fields
/// of that pass (data::batch_of_pass) and the recycled ones. Numbers become fp64 for a model in fp64. Without a
/// pipeline the micro-batches of a step run one after another; with one all of them run a pass before the next.
///
/// Memory:        the recycled fields of all rows of `batch`, twice while a pass runs; a model may compute z in its
///                field.
/// Communication: that of Engine::forward() for each pass. If a pipeline splits the model, an all_reduce over its
/// stages
///                of each recycled field for each pass.
/// Errors: those of Engine::forward(). ("fold") passes below 1.
tensor::Batch after_passes(train::Engine& engine, const tensor::Batch& batch, int64_t passes);

/// Makes the rule of a run with the objective folding; another objective gets train::OneUpdate.
///
/// A step draws its number of passes from 1 to folding.passes, runs all but the last one as after_passes() does, and
/// trains with the last one. Gradients do not go through earlier passes. With folding.clip_sample it clips the gradient
/// of each chain (Engine::train_rows()). Held-out batches run folding.passes, and so do recorded steps, because plans
/// must know the larger ones. Its metrics are those of run::FoldingObjective::step_metrics().
///
/// Communication: that of after_passes() and of Engine::train_step() or train_rows(). Over "pipeline" and the axes that
///                split rows an all_reduce of three numbers.
/// Errors ("fold"), on all ranks: a loss or a gradient that is not finite. The step runs again with checks
///                (fold/finite_check.h), and the message names the first operator, block and pass.
std::unique_ptr<train::StepRule> make_recycling_rule(train::Engine& engine, const run::Config& config,
                                                     const run::OwnTables& tables);

}  // namespace colossal::fold
