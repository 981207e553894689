#include "colossal/memory/device_meter.h"

#include <optional>

#include "colossal/memory/account.h"
#include "colossal/memory/peak.h"
#include "colossal/tensor/accelerator.h"

namespace colossal::memory {
namespace {

class ArenaMeter final : public DeviceMeter {
 public:
  void begin(int64_t) override {  // an account does not count earlier tensors
    account_.reset();
    account_.emplace();
  }
  void end() override { account_.reset(); }
  int64_t peak() const override { return account_ ? account_->usage().peak_device : 0; }
  void restart() override {
    if (account_) account_->reset_peaks();
  }

 private:
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

std::unique_ptr<DeviceMeter> make_device_meter(at::Device device) {
  if (tensor::is_accelerator(device)) return std::make_unique<AllocatorMeter>(device);
  return std::make_unique<ArenaMeter>();
}

}  // namespace colossal::memory
