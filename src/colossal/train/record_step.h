// Records the work of one rank in a training step from shapes alone, without other ranks, data or a device.
//
//   for (const StepEvent& event : train::record_step(config, shape, 5).list)    // rank 5 of config.parallel.ranks()
//     if (event.kind == StepEvent::Kind::Call) bytes += event.bytes;
#pragma once
#include "colossal/base/step_events.h"
#include "colossal/models/shape.h"
#include "colossal/run/config.h"

namespace colossal::train {

/// Returns the events of the second step of rank `rank`: forward, backward, reduction and update, of full samples, each
/// row one document. From the second step on, the store knows the order in which chunks are used. The events equal
/// those that the rank records in the real run (comm::RecordingWorld) on the device of [run]. Products inside update
/// rules are included if the rank computes them.
///
/// No communication, and no parameter has memory. Time: the bookkeeping of two steps.
/// Errors: as initialize(). "record": tiers of [memory], whose transfers are not recorded; fp8, whose scales depend on
///         values; a model or an optimizer (lamb) with operators that LibTorch cannot run on shapes alone.
StepEvents record_step(const run::Config& config, const models::ModelShape& shape, int rank);

}  // namespace colossal::train
