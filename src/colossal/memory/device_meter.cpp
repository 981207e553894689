#include "colossal/memory/device_meter.h"

#include <optional>

#include "colossal/memory/account.h"
#include "colossal/memory/peak.h"
#include "colossal/tensor/accelerator.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::memory {
namespace {

class ArenaMeter final : public DeviceMeter {
 public:
  explicit ArenaMeter(Counted counted) : counted_(counted) {}
  void begin(int64_t) override {  // an account does not count earlier tensors
    account_.reset();
    account_.emplace(counted_);
  }
  void end() override { account_.reset(); }
  int64_t peak() const override { return account_ ? account_->usage().peak_device : 0; }
  void restart() override {
    if (account_) account_->reset_peaks();
  }

 private:
  const Counted counted_;
  std::optional<Account> account_;
};

class AllocatorMeter final : public DeviceMeter {
 public:
  explicit AllocatorMeter(at::Device device) : device_(device) {}
  void begin(int64_t resident) override {
    resident_ = resident;
    restart();
  }
  void end() override {}
  int64_t peak() const override { return peak_bytes(device_) - resident_; }
  void restart() override { restart_peak(device_); }

 private:
  at::Device device_;
  int64_t resident_ = 0;
};

}  // namespace

Counted counted_on(at::Device device) {
  if (!device.is_meta()) return Counted::Memory;
  return tensor::is_for_accelerator(device) ? Counted::Shapes : Counted::MemoryAndShapes;
}

std::unique_ptr<DeviceMeter> make_device_meter(at::Device device) {
  if (tensor::is_accelerator(device)) return std::make_unique<AllocatorMeter>(device);
  return std::make_unique<ArenaMeter>(counted_on(device));
}

}  // namespace colossal::memory
