#include "colossal/train/measured_memory.h"

#include <ATen/ATen.h>

#include <algorithm>

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

}  // namespace colossal::train
