#include "colossal/predict/stage_seconds.h"

#include <numeric>

#include "colossal/parallel/pipeline/plan.h"
#include "colossal/plan/stage_cut.h"
#include "colossal/schedule/make.h"

namespace colossal::predict {
namespace {

parallel::ModelCosts model_costs(const models::Costs& costs) {
  return {.first = costs.first, .blocks = costs.blocks, .last = costs.last};
}

schedule::Placement placement_of(const run::Config& config) {
  const parallel::PipelineConfig& pipeline = config.parallel.pipeline;
  return schedule::placement_of({.name = pipeline.schedule,
                                 .stages = static_cast<int>(pipeline.size),
                                 .micro_batches = static_cast<int>(config.micro_batches()),
                                 .chunks = static_cast<int>(pipeline.chunks)});
}

std::vector<int64_t> layers_of(const std::vector<int64_t>& cuts) {
  std::vector<int64_t> layers;
  for (size_t k = 0; k + 1 < cuts.size(); ++k) layers.push_back(cuts[k + 1] - cuts[k]);
  return layers;
}

/// Predicted costs of a rank of the pipeline.
struct RankCosts {
  double per_operation = 0;  // seconds
  double per_block = 0;      // bytes of a block: parameters with gradients and states, and activations in flight
  double other = 0;          // bytes that do not depend on the number of blocks
};

/// Returns what each rank costs; nothing if a rank has no block.
std::optional<std::vector<RankCosts>> rank_costs(const schedule::Placement& placement, const models::Costs& costs,
                                                 const std::vector<int64_t>& layers,
                                                 const plan::Prediction& prediction) {
  const auto ranks = static_cast<size_t>(placement.ranks());
  std::vector<double> operations(ranks, 0);
  std::vector<int64_t> blocks(ranks, 0);
  for (int pipe = 0; pipe < placement.pipes(); ++pipe) {
    auto block = costs.blocks.begin();
    for (int stage = 0; stage < placement.stages(); ++stage) {
      const auto rank = static_cast<size_t>(placement.rank_of(pipe, stage));
      const int64_t count = layers[static_cast<size_t>(stage)];
      operations[rank] += std::accumulate(block, block + count, 0.0) + (stage == 0 ? costs.first : 0) +
                          (stage + 1 == placement.stages() ? costs.last : 0);
      blocks[rank] += count;
      block += count;
    }
  }
  std::vector<RankCosts> found(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (blocks[rank] == 0 || operations[rank] <= 0) return std::nullopt;
    const plan::PredictedRole& role = prediction.roles[rank];
    const StepMemory::Kinds& kinds = role.kinds;
    // Each end also has the embedding or the head, which this counts among the blocks: too much for them, not too
    // little.
    const auto changing = static_cast<double>(kinds.parameters + kinds.gradients + kinds.states + kinds.activations);
    found[rank].per_operation = role.seconds.compute / operations[rank];
    found[rank].per_block = changing / static_cast<double>(blocks[rank]);
    found[rank].other = static_cast<double>(kinds.buffers);
  }
  return found;
}

}  // namespace

std::vector<int64_t> layers_by_costs(const run::Config& config, const models::Costs& costs) {
  return layers_of(parallel::cut_blocks(model_costs(costs), placement_of(config)));
}

std::optional<std::vector<int64_t>> layers_by_seconds(const run::Config& config, const models::Costs& costs,
                                                      const plan::Prediction& prediction, double device_bytes) {
  const schedule::Placement placement = placement_of(config);
  const std::vector<int64_t>& layers = config.parallel.pipeline.layers_per_stage;
  if (prediction.roles.size() != static_cast<size_t>(placement.ranks())) return std::nullopt;
  const auto ranks = rank_costs(placement, costs, layers, prediction);
  if (!ranks) return std::nullopt;
  const auto rank_of = [&](int64_t stage) -> const RankCosts& {
    return (*ranks)[static_cast<size_t>(placement.rank_of(0, static_cast<int>(stage)))];
  };
  if (placement.stages() > placement.ranks() || placement.pipes() > 1) {
    parallel::ModelCosts seconds = model_costs(costs);
    size_t block = 0;
    for (int64_t stage = 0; stage < placement.stages(); ++stage)
      for (int64_t i = 0; i < layers[static_cast<size_t>(stage)]; ++i)
        seconds.blocks[block++] *= rank_of(stage).per_operation;
    seconds.first *= rank_of(0).per_operation;
    seconds.last *= rank_of(placement.stages() - 1).per_operation;
    return layers_of(parallel::cut_blocks(seconds, placement));
  }
  std::vector<double> sums(1, 0);  // operations of the first blocks
  for (const double operations : costs.blocks) sums.push_back(sums.back() + operations);
  const auto count = static_cast<double>(config.micro_batches());
  const int64_t last = placement.stages() - 1;
  const auto cut = plan::cut_stages(
      {.blocks = static_cast<int64_t>(costs.blocks.size()),
       .stages = placement.stages(),
       .micro_batches = config.micro_batches(),
       .seconds =
           [&](int64_t stage, int64_t from, int64_t to) {
             const double operations = sums[static_cast<size_t>(to)] - sums[static_cast<size_t>(from)] +
                                       (stage == 0 ? costs.first : 0) + (stage == last ? costs.last : 0);
             return operations * rank_of(stage).per_operation / count;
           },
       .fits =
           [&](int64_t stage, int64_t from, int64_t to) {
             return rank_of(stage).other + static_cast<double>(to - from) * rank_of(stage).per_block <= device_bytes;
           }});
  if (!cut) return std::nullopt;
  return cut->layers;
}

}  // namespace colossal::predict
