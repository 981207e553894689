// Records one rank of each pipeline stage: enough to compare layouts, at a fraction of record_roles().
//
//   const auto prediction = predict::predict_step(config, shape, predict::record_stages(config, shape), cluster);
#pragma once
#include "colossal/predict/step.h"

namespace colossal::predict {

/// Records the first rank of each rank of the pipeline. It stands for all ranks that differ from it only along other
/// axes; their shards differ by padding, and under sequence parallelism by the pairs that a mask leaves.
/// No communication. Errors: those of train::record_step().
RecordedRoles record_stages(const run::Config& config, const train::RunModels& models);
/// Records the stages for the devices of `cluster`, as record_roles(config, model, cluster) records roles.
RecordedRoles record_stages(const run::Config& config, const train::RunModels& models, const plan::Cluster& cluster);

/// Returns blocks x micro-batches that record_stages() runs, with what building the ranks of `stages` stages costs.
double recording_work(int64_t stages, int64_t micro_batches, bool recomputes, int64_t blocks);
/// The same for a config.
double recording_work(const run::Config& config, int64_t blocks);

}  // namespace colossal::predict
