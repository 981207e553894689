// Converts the section [parallel] pipeline into a schedule and into stages of the model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/schedule/make.h"

namespace colossal::parallel {

/// The section [parallel] pipeline.
struct PipelineConfig {
  int64_t size = 1;
  std::string schedule = "1f1b";
  int64_t micro_batches = 0;
  int64_t chunks = 0;
  std::vector<int64_t> layers_per_stage;
  void fields(Fields& f);
};

/// Costs of the parts of a model, in any one unit: the two ends and the blocks.
struct ModelCosts {
  double first = 0;  ///< cost of the embedding
  std::vector<double> blocks;
  double last = 0;  ///< cost of the final norm and the head
};

/// The plan of a pipeline for a model with a given number of blocks.
struct PipelinePlan {
  schedule::Schedule schedule;
  /// Block borders: stage k has blocks [cuts[k], cuts[k+1]); the first stage also has the embedding, the last the head
  std::vector<int64_t> cuts;

  int64_t stages() const { return static_cast<int64_t>(cuts.size()) - 1; }
  /// Returns ShardSpec::stages of the parameters that stage `stage` uses: indices along the pipeline, ascending.
  std::vector<int> ranks_of_stage(int64_t stage) const;
};

/// Returns the plan, which is the same on every rank. The blocks are split as config.layers_per_stage says; if that is
/// empty, so that the most expensive rank is as cheap as possible. The first and the last stage may have no block.
/// Searched schedules use the costs of the stages. config.micro_batches must not be 0. No communication.
/// Errors ("pipeline"): fewer blocks than stages, or sizes that the schedule does not support; with the nearest legal
///                      values. layers_per_stage that does not give all blocks to all stages.
PipelinePlan make_plan(const PipelineConfig& config, const ModelCosts& costs);

/// Checks the sizes against the schedule: the errors of make_plan that need no model. config.micro_batches must not be
/// 0. Errors ("pipeline"): sizes that the schedule does not support, with the nearest legal values.
void check_sizes(const PipelineConfig& config);

/// Returns config.micro_batches. If that is 0, returns 4, 3, 2 or 1 per rank, the largest that fits. A number fits if
/// its product with `batch_parts` divides `batch`. `batch` is the number of samples of a replica in a step; a tensor
/// mode splits each micro-batch into `batch_parts`.
/// Errors ("pipeline"): a number that does not fit, with a remedy.
int64_t micro_batches_of(const PipelineConfig& config, int64_t batch, int64_t batch_parts);

/// Returns the borders of `stages` runs of blocks such that the most expensive run is as cheap as possible. Cost:
/// stages * blocks^2.
std::vector<int64_t> cut_blocks(const ModelCosts& costs, int64_t stages);

/// Starts from the borders above and moves them as long as that makes the most expensive rank cheaper; a rank may have
/// several stages. It also moves them if that rank stays as cheap and the most expensive stage becomes cheaper.
std::vector<int64_t> cut_blocks(const ModelCosts& costs, const schedule::Placement& placement);

/// Returns the cost of each stage, relative to their mean; at least 1/1000, because a schedule needs steps of non-zero
/// length.
std::vector<double> stage_weights(const ModelCosts& costs, const std::vector<int64_t>& cuts);

/// Returns the costs with which a schedule is planned. The three parts of a block's work (forward, BackwardInput,
/// BackwardWeight) have equal length. The head's whole work is in forward (ops::linear_cross_entropy).
schedule::Costs schedule_costs(const ModelCosts& costs, const std::vector<int64_t>& cuts);

}  // namespace colossal::parallel
