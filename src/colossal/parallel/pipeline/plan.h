// What [parallel] pipeline asks for, as a schedule and as stages of the model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/schedule/make.h"

namespace colossal::parallel {

/// [parallel] pipeline
struct PipelineConfig {
  int64_t size = 1;
  std::string schedule = "1f1b";
  int64_t micro_batches = 0;
  int64_t chunks = 0;
  std::vector<int64_t> layers_per_stage;
  void fields(Fields& f);
};

/// What parts of a model cost, in any one unit: the ends beside the blocks.
struct ModelCosts {
  double first = 0;  ///< embedding
  std::vector<double> blocks;
  double last = 0;  ///< final norm and head
};

/// How a pipeline runs a model of some blocks.
struct PipelinePlan {
  schedule::Schedule schedule;
  /// Stage k has blocks [cuts[k], cuts[k+1]), the first the embedding, too, and the last the head
  std::vector<int64_t> cuts;

  int64_t stages() const { return static_cast<int64_t>(cuts.size()) - 1; }
  /// ShardSpec::stages of what stage `stage` uses: indices along the pipeline, ascending.
  std::vector<int> ranks_of_stage(int64_t stage) const;
};

/// The same on every rank. Blocks are dealt out so that the most expensive rank is as cheap as can be, or as
/// config.layers_per_stage says; the ends of the chain may then have no block. Schedules that are searched for know
/// what each stage costs. config.micro_batches is given.
/// Errors ("pipeline"): fewer blocks than stages, what the schedule cannot do; with the nearest legal values. No
///                      communication.
PipelinePlan make_plan(const PipelineConfig& config, const ModelCosts& costs);

/// Errors ("pipeline"): sizes that the schedule cannot do, with the nearest legal values: make_plan's errors that need
///                      no model. config.micro_batches is given.
void check_sizes(const PipelineConfig& config);

/// config.micro_batches, or where it is 0 the most up to four a rank into which `batch`, the samples of a replica in a
/// step, divides.
/// Errors ("pipeline"): parts that are no whole samples for each of the `batch_parts` of a tensor mode, with what to
///                      change.
int64_t micro_batches_of(const PipelineConfig& config, int64_t batch, int64_t batch_parts);

/// Borders of `stages` runs of blocks whose dearest is as cheap as can be. Cost: stages * blocks^2.
std::vector<int64_t> cut_blocks(const ModelCosts& costs, int64_t stages);

/// The same, with borders moved as long as that makes the dearest rank, which may have several stages, cheaper, or as
/// cheap with a cheaper dearest stage.
std::vector<int64_t> cut_blocks(const ModelCosts& costs, const schedule::Placement& placement);

/// What each stage costs, relative to their mean; 1/1000 at least, as a schedule wants no step without a length.
std::vector<double> stage_weights(const ModelCosts& costs, const std::vector<int64_t>& cuts);

/// What a schedule is planned with: the three parts of a block's work are of one length, those of the head are all in
/// forward (ops::linear_cross_entropy).
schedule::Costs schedule_costs(const ModelCosts& costs, const std::vector<int64_t>& cuts);

}  // namespace colossal::parallel
