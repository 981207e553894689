#include "colossal/predict/devices_meant.h"

#include <algorithm>

namespace colossal::predict {

DevicesMeant::DevicesMeant(const plan::Cluster& cluster) {
  const plan::DeviceProfile& device = cluster.profile().device;
  if (device.fp8 <= std::max(device.bf16, device.fp16))
    without_products_.emplace(ops::DeviceOperator::ScaledProduct);
}

}  // namespace colossal::predict
