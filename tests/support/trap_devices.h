// Trap devices as the accelerators of a run: `[run] device` "cuda" and "auto" then select them.
#pragma once
#include <string>
#include <vector>

#include "colossal/comm/launch/device.h"
#include "support/trap_device.h"

namespace colossal::test {

/// A list of trap devices, one for each of `ids`, which are their PCI ids.
class TrapDevices final : public comm::Devices {
 public:
  explicit TrapDevices(std::vector<std::string> ids) : ids_(std::move(ids)) { trap_device(); }
  at::DeviceType type() const override { return at::kPrivateUse1; }
  int count() const override { return static_cast<int>(ids_.size()); }
  std::string pci_id(int index) const override { return ids_.at(static_cast<size_t>(index)); }

 private:
  std::vector<std::string> ids_;
};

}  // namespace colossal::test
