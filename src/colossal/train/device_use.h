// What a rank's device had and moved, where [memory] device gives it a budget.
//
//   if (const auto use = engine->device_use()) log.info(readable_bytes(use->peak));
#pragma once
#include <cstdint>

namespace colossal::train {

/// Bytes of one rank.
struct DeviceUse {
  /// Since the start, from the host: its parts of chunks that were gathered, and inputs of recomputed blocks.
  int64_t copied_to = 0;
  /// Since the start, to the host: its parts of gradients, inputs of recomputed blocks, and what it began with.
  int64_t copied_from = 0;
  /// Peaks of the last step: of gathered parameters and resident states, and of everything.
  int64_t model = 0, peak = 0;
  /// Shards that are on the device now.
  int64_t states = 0;
};

}  // namespace colossal::train
