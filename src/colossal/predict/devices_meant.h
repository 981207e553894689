// The operators of the devices of a cluster, for a step that is recorded on meta.
//
//   const predict::DevicesMeant devices(cluster);        // while it lives, steps of this thread make their choices
#pragma once
#include <optional>

#include "colossal/ops/device/operators.h"
#include "colossal/plan/cluster.h"

namespace colossal::predict {

/// Makes steps that are recorded on this thread use the operators that the devices of `cluster` have, during its
/// lifetime. Accelerators are taken to have all of them. They multiply 8-bit values if their profile names a higher
/// rate for them (device.fp8) than for bf16 and fp16.
class DevicesMeant {
 public:
  explicit DevicesMeant(const plan::Cluster& cluster);

 private:
  std::optional<ops::MeantWithoutOperator> without_products_;
};

}  // namespace colossal::predict
