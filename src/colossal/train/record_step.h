// What one rank of a run does in a step, recorded on shapes alone: no other rank, no data and no device is needed.
//
//   for (const StepEvent& event : train::record_step(config, shape, 5).list)    // rank 5 of config.parallel.ranks()
//     if (event.kind == StepEvent::Kind::Call) bytes += event.bytes;
#pragma once
#include "colossal/base/step_events.h"
#include "colossal/models/shape.h"
#include "colossal/run/config.h"

namespace colossal::train {

/// The events of the second step of rank `rank`: forward, backward, reduction and update, of full samples, each row one
/// document. In the second step the store knows the order in which chunks are used, as in every later one. They equal
/// what the rank records in the real run (comm::RecordingWorld) on the device of [run]. Products inside update rules
/// are among them if the rank computes them.
///
/// Nothing is communicated and no parameter has memory. Time: that of the bookkeeping of two steps.
/// Errors: those of initialize(); ("record") tiers of [memory], whose transfers are not recorded; fp8, whose scales
///         depend on values; a model or an optimizer (lamb) with operators that LibTorch cannot run on shapes alone.
StepEvents record_step(const run::Config& config, const models::ModelShape& shape, int rank);

}  // namespace colossal::train
