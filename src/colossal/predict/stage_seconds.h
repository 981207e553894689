// Cuts the blocks of a model into pipeline stages by the predicted seconds and memory of a recorded step.
//
//   config.parallel.pipeline.layers_per_stage = predict::layers_by_costs(config, costs);      // the cut of a run
//   const auto layers = predict::layers_by_seconds(config, costs, prediction, cluster.device_bytes());
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/models/registry.h"
#include "colossal/plan/prediction.h"
#include "colossal/run/config.h"

namespace colossal::predict {

/// Returns the blocks of each stage, cut by operations as in a run whose layers_per_stage is empty.
std::vector<int64_t> layers_by_costs(const run::Config& config, const models::Costs& costs);

/// Returns the blocks of each stage such that a step is fastest and each rank has at most `device_bytes`. `prediction`
/// has one role for each rank of the pipeline, with the cut config.parallel.pipeline.layers_per_stage. The seconds of a
/// rank are split among its blocks by their operations, its bytes evenly. With one stage per rank the cut is that of
/// plan::cut_stages(). With several it is parallel::cut_blocks() by seconds, which does not regard memory.
/// Returns nothing if no cut fits, or if a rank has no block whose costs could be known.
std::optional<std::vector<int64_t>> layers_by_seconds(const run::Config& config, const models::Costs& costs,
                                                      const plan::Prediction& prediction, double device_bytes);

}  // namespace colossal::predict
