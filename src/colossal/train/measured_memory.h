// Measures the memory of each step of a run that has a prediction, for the comparison at its end.
//
//   MeasuredMemory memory(device);               // before the first tensor of the run
//   memory.begin_step();
//   ...
//   metrics.add(memory.end_step(mesh.all()));    // rows "device_peak_bytes" and "resident_bytes"
#pragma once
#include <c10/core/Device.h>

#include <optional>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/comm/group.h"
#include "colossal/memory/account.h"

namespace colossal::train {

/// On the CPU it holds a memory::Account of this thread, so it must end on the thread that made it.
class MeasuredMemory {
 public:
  explicit MeasuredMemory(at::Device device);
  void begin_step();
  /// Returns the most bytes of any rank: of tensors on the device during this step (on accelerators so far), and of
  /// resident memory so far. Communication: an all_gather of 16 bytes from each rank.
  std::vector<Metric> end_step(comm::Group& ranks) const;

 private:
  at::Device device_;
  std::optional<memory::Account> account_;  // none on accelerators, whose allocator counts
};

}  // namespace colossal::train
