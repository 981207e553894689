#include "colossal/train/step_measures.h"

#include <ATen/ATen.h>

#include <utility>

#include "colossal/base/known_metrics.h"
#include "colossal/memory/device_meter.h"
#include "colossal/report/predicted_step.h"

namespace colossal::train {

MeasuredMemory::MeasuredMemory(at::Device device) : device_(device) {
  if (device.is_cpu()) account_.emplace();
}

void MeasuredMemory::begin_step() {
  if (account_) account_->reset_peaks();
}

std::vector<Metric> MeasuredMemory::end_step(comm::Group& ranks) const {
  const int64_t device = account_ ? account_->usage().peak_device : memory::peak_bytes(device_);
  const at::Tensor own = at::tensor({device, memory::peak_bytes(at::kCPU)}, at::kLong);
  at::Tensor all = at::empty({ranks.size() * 2}, at::kLong);
  ranks.all_gather(all, own).wait();
  const at::Tensor most = std::get<0>(all.view({-1, 2}).max(0));
  const auto row = [&](const char* name, int64_t index, const char* legend, const char* tag) {
    return Metric{.name = name,
                  .value = most[index].item<int64_t>(),
                  .unit = "bytes",
                  .plot = "Memory of the fullest rank",
                  .legend = legend,
                  .tag = tag};
  };
  return {row(report::kDevicePeak, 0, "device memory", "memory/device_step_gigabytes"),
          row(report::kResidentPeak, 1, "resident memory", "memory/resident_gigabytes")};
}

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

StallRecords::StallRecords(comm::World& world, const Log& log) : world_(world), log_(log) {
  world_.on_stall([this](const comm::Stall& stall) { hear(stall); });
}

StallRecords::~StallRecords() { world_.on_stall(nullptr); }

double StallRecords::take_seconds() {
  const std::lock_guard lock(mutex_);
  return std::exchange(seconds_, 0);
}

void StallRecords::hear(const comm::Stall& stall) {
  if (stall.is_over) {
    const std::lock_guard lock(mutex_);
    seconds_ += stall.seconds;
  }
  log_.write(stall.seen_here ? LogLevel::kWarning : LogLevel::kDebug, "waiting: " + stall.text);
}

}  // namespace colossal::train
