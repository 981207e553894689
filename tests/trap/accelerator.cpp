#include "support/accelerator.h"

namespace colossal::test {

at::Device accelerator(int index) { return trap_device(index); }
int accelerators() { return kTrapDevices; }

struct AcceleratorWaits::State {
  TrapWaits waits{trap_device()};
};
AcceleratorWaits::AcceleratorWaits() : state_(std::make_unique<State>()) {}
AcceleratorWaits::~AcceleratorWaits() = default;
TrapCounts AcceleratorWaits::counts() { return state_->waits.counts(); }
bool AcceleratorWaits::are_counted() { return true; }

}  // namespace colossal::test
