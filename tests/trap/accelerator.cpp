#include "support/accelerator.h"

#include <utility>

#include "support/trap_kernels.h"

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

struct AcceleratorKernels::State {
  TrapKernels kernels;
  int64_t asked = 0;
};
AcceleratorKernels::AcceleratorKernels() : state_(std::make_unique<State>()) {}
AcceleratorKernels::~AcceleratorKernels() = default;
std::optional<int64_t> AcceleratorKernels::launches() {
  const int64_t all = state_->kernels.launches();
  return all - std::exchange(state_->asked, all);
}
bool AcceleratorKernels::are_there() { return true; }

}  // namespace colossal::test
