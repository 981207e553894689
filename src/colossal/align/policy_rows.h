// Training rows from the answers of a step: the global batch of its updates, the same on every rank.
//
//   const PolicyRows rows = policy_rows(groups, objective);
//   const at::Tensor old = gathered_tokens(engine, rows.batch, objective_scores);       // [R, S]
//   engine.train_step(own_rows(engine, rows.batch, 0), ...);                            // of the first update
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/align/rollouts/rollout_groups.h"
#include "colossal/run/objectives/alignment/policy_objective.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/engine.h"

namespace colossal::align {

/// The R answers of a step as rows of S tokens, prompt by prompt. Tensors are on the host.
struct PolicyRows {
  tensor::Batch batch;             ///< the fields of text and run::kAnswerCounts
  at::Tensor counts;               ///< bool [R, S]: true at each token of an answer that is trained
  at::Tensor sampled;              ///< fp64 [R, S]: log-probabilities of the draws, 0 elsewhere
  int64_t drawn = 0, trained = 0;  ///< tokens of all answers; tokens of all rows, prompts included
};

/// Makes the rows. With `masks`, answers that reached rollout.max_tokens do not count if rollout.truncated = "mask",
/// nor do answers without a score if advantages are those of tokens.
PolicyRows policy_rows(const std::vector<RolloutGroup>& groups, const run::PolicyObjective& objective,
                       bool masks = true);

/// Returns answers of full length that no model has drawn, for measured steps. `version`: RolloutAnswer::version.
std::vector<RolloutGroup> imitated_groups(const run::PolicyObjective& objective, int64_t version);

/// Returns true if an answer was drawn by other weights than those after `version` updates.
bool has_other_version(const std::vector<RolloutGroup>& groups, int64_t version);

/// Returns this replica's rows of update `update` of the batch: rows [i B, (i + 1) B), B = training.batch_size.
tensor::Batch own_rows(train::Engine& engine, const tensor::Batch& batch, int64_t update, int64_t batch_size);

/// Passes the rows through a model without gradients, an update's rows at a time, and returns the results of all R rows
/// on every rank, in fp64 on the host: [R, K], if `result` returns [B, K]. If several stages of a pipeline have
/// results, because the model has axes of its own without "pipeline", those of the first count.
/// Communication: that of train::Engine::forward(); over "pipeline" an all_reduce of [1] and one of this replica's
///                results; an
///                all_gather over the axes that split rows.
at::Tensor gathered_results(train::Engine& engine, const tensor::Batch& batch, int64_t batch_size, int64_t columns,
                            const train::Engine::Loss& result, const std::string& model = "");

/// Returns the batch with a field [R, S] that all columns of a row have, in the dtype of the engine's results.
tensor::Batch with_field(train::Engine& engine, const tensor::Batch& batch, const char* name, const at::Tensor& values);

}  // namespace colossal::align
