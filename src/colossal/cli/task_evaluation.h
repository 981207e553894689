// The tasks of a training run, [training] tasks, as its trainer evaluates them.
//
//   options.further_evaluation = cli::task_evaluation;      // train::TrainerOptions
#pragma once
#include <string>
#include <vector>

#include "colossal/evaluate/evaluate.h"
#include "colossal/run/config.h"
#include "colossal/train/trainer.h"

namespace colossal::cli {

/// Reads the tasks of the config and their data, as `colossal evaluate --tasks` does without further options.
/// Errors ("training"): a task whose name cannot be part of a metric's name. Errors of evaluate::prepare().
std::vector<evaluate::PreparedTask> prepared_tasks(const run::Config& config);

/// Returns the evaluation of training.tasks: nothing if there are none. Each metric of a task is the row
/// "tasks.NAME.METRIC"; subjects and standard errors have no rows. The main model of the run, as it is in training,
/// answers through an engine of its own, which exists only during an evaluation.
///
/// Layouts:       all. Every replica answers all requests.
/// Numerics:      those of `colossal evaluate --tasks` on the checkpoint in the dtype of training, except for the order
///                of sums in products, which packed weights change.
/// Memory:        a KV cache on every rank: 16 texts of the model's length, and at most 1 GiB.
/// Communication: that of evaluate::EngineScorer, and a broadcast of the end tokens from rank 0, which reads them from
///                the run folder.
/// Errors, before the first step ("training"): a model that does not continue texts, or a run without a tokenizer.
/// Errors of prepared_tasks(), evaluate::EngineScorer and evaluate::check().
train::FurtherEvaluation task_evaluation(const run::Config& config);

}  // namespace colossal::cli
