// Memory use and transfers of a rank's device that has a budget in [memory] device.
//
//   if (const auto use = engine->device_use()) log.info(readable_bytes(use->peak));
#pragma once
#include <cstdint>

namespace colossal::train {

/// Bytes on one rank.
struct DeviceUse {
  /// copied from the host since the start: its shards of gathered chunks, inputs of recomputed layers, and gradients
  /// that were set aside
  int64_t copied_to = 0;
  /// copied to the host since the start: its shards of gradients, inputs of recomputed layers, and initial values
  int64_t copied_from = 0;
  /// peaks of the last step: `model` of gathered parameters and resident states, `peak` of all memory
  int64_t model = 0, peak = 0;
  /// shards that are on the device now
  int64_t states = 0;
};

}  // namespace colossal::train
