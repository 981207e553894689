#include "colossal/train/tier_moves.h"

#include <ATen/ATen.h>

namespace colossal::train {

void TierMoves::begin_step() {
  if (!tiers_) return;
  const memory::TieredHome::Counts now = tiers_->counts();
  read_before_ = now.bytes_read, written_before_ = now.bytes_written;
}

std::optional<report::TierMetrics> TierMoves::end_step(comm::Group& ranks) const {
  if (!tiers_) return std::nullopt;
  const memory::TieredHome::Counts now = tiers_->counts();
  at::Tensor sums = at::tensor(
      {now.host_bytes, now.disk_bytes, now.bytes_read - read_before_, now.bytes_written - written_before_}, at::kLong);
  ranks.all_reduce(sums, comm::Reduce::Sum).wait();
  const auto* bytes = sums.const_data_ptr<int64_t>();
  return report::TierMetrics{bytes[0], bytes[1], bytes[2], bytes[3]};
}

}  // namespace colossal::train
