// The memory of one rank in a training step. Reading it needs neither LibTorch nor a device.
//
//   const StepMemory memory = train::record_step(config, shape, 5).memory;
//   if (memory.peak_bytes > device_bytes) suggest_recomputation(memory.kinds.activations);
#pragma once
#include <cstdint>

namespace colossal {

/// Bytes of a rank's tensors in one step, without the memory of LibTorch itself.
struct StepMemory {
  /// The most bytes of each memory::Kind at any moment. The moments differ, so their sum exceeds `peak_bytes`.
  struct Kinds {
    int64_t parameters = 0, gradients = 0, states = 0, activations = 0, buffers = 0;
    int64_t host = 0;  ///< host memory of tiers, and of work done there
    bool operator==(const Kinds&) const = default;
  };
  Kinds kinds;
  int64_t peak_bytes = 0;  ///< the most bytes of all kinds but `host` together
  /// Index in StepEvents::list of the first event that starts after the peak is reached; the size of the list if the
  /// peak is after the last event
  int64_t peak_event = 0;
  bool operator==(const StepMemory&) const = default;
};

}  // namespace colossal
