#include "colossal/train/tier_moves.h"

#include <ATen/ATen.h>

#include "colossal/base/known_metrics.h"

namespace colossal::train {

TierMoves::Counts TierMoves::now() const {
  return {engine_.tiers()->counts(), engine_.device_use().value_or(DeviceUse{})};
}

void TierMoves::begin_step() {
  if (engine_.tiers()) before_ = now();
}

std::vector<Metric> TierMoves::end_step(comm::Group& ranks) const {
  if (!engine_.tiers()) return {};
  const auto [tiers, device] = now();
  at::Tensor sums =
      at::tensor({tiers.host_bytes, tiers.disk_bytes, tiers.bytes_read - before_.tiers.bytes_read,
                  tiers.bytes_written - before_.tiers.bytes_written, device.copied_to - before_.device.copied_to,
                  device.copied_from - before_.device.copied_from},
                 at::kLong);
  ranks.all_reduce(sums, comm::Reduce::Sum).wait();
  const auto* bytes = sums.const_data_ptr<int64_t>();
  std::vector<Metric> rows{known_metric("tiers.host_bytes", bytes[0]), known_metric("tiers.disk_bytes", bytes[1]),
                           known_metric("tiers.bytes_read", bytes[2]), known_metric("tiers.bytes_written", bytes[3])};
  if (!engine_.device_use()) return rows;
  at::Tensor most = at::tensor({device.model, device.peak}, at::kLong);
  ranks.all_reduce(most, comm::Reduce::Max).wait();
  rows.push_back(known_metric("tiers.device_model_bytes", most[0].item<int64_t>()));
  rows.push_back(known_metric("tiers.device_peak_bytes", most[1].item<int64_t>()));
  rows.push_back(known_metric("tiers.device_bytes_in", bytes[4]));
  rows.push_back(known_metric("tiers.device_bytes_out", bytes[5]));
  return rows;
}

}  // namespace colossal::train
