#include "colossal/train/tier_moves.h"

#include <ATen/ATen.h>

namespace colossal::train {

TierMoves::Counts TierMoves::now() const {
  return {engine_.tiers()->counts(), engine_.device_use().value_or(DeviceUse{})};
}

void TierMoves::begin_step() {
  if (engine_.tiers()) before_ = now();
}

std::optional<report::TierMetrics> TierMoves::end_step(comm::Group& ranks) const {
  if (!engine_.tiers()) return std::nullopt;
  const auto [tiers, device] = now();
  at::Tensor sums =
      at::tensor({tiers.host_bytes, tiers.disk_bytes, tiers.bytes_read - before_.tiers.bytes_read,
                  tiers.bytes_written - before_.tiers.bytes_written, device.copied_to - before_.device.copied_to,
                  device.copied_from - before_.device.copied_from},
                 at::kLong);
  ranks.all_reduce(sums, comm::Reduce::Sum).wait();
  const auto* bytes = sums.const_data_ptr<int64_t>();
  report::TierMetrics metrics{bytes[0], bytes[1], bytes[2], bytes[3]};
  if (!engine_.device_use()) return metrics;
  at::Tensor most = at::tensor({device.model, device.peak}, at::kLong);
  ranks.all_reduce(most, comm::Reduce::Max).wait();
  metrics.device = {most[0].item<int64_t>(), most[1].item<int64_t>(), bytes[4], bytes[5]};
  return metrics;
}

}  // namespace colossal::train
