#include "support/accelerator.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "colossal/ops/device/tables.h"
#ifdef USE_C10D_NCCL  // a LibTorch with NCCL has the headers of CUDA's runtime, too
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace colossal::test {

at::Device accelerator(int index) { return {at::kCUDA, static_cast<at::DeviceIndex>(index)}; }
int accelerators() { return at::hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0; }

#ifdef USE_C10D_NCCL
struct AcceleratorWaits::State {
  c10::cuda::SyncDebugMode before = c10::cuda::warning_state().get_sync_debug_mode();
};
AcceleratorWaits::AcceleratorWaits() : state_(std::make_unique<State>()) {
  c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
}
AcceleratorWaits::~AcceleratorWaits() { counts(); }
TrapCounts AcceleratorWaits::counts() {
  c10::cuda::warning_state().set_sync_debug_mode(state_->before);
  return {};
}
#else
struct AcceleratorWaits::State {};
AcceleratorWaits::AcceleratorWaits() = default;
AcceleratorWaits::~AcceleratorWaits() = default;
TrapCounts AcceleratorWaits::counts() { return {}; }
#endif
bool AcceleratorWaits::are_counted() { return false; }

struct AcceleratorKernels::State {};
AcceleratorKernels::AcceleratorKernels() = default;
AcceleratorKernels::~AcceleratorKernels() = default;
std::optional<int64_t> AcceleratorKernels::launches() { return std::nullopt; }
bool AcceleratorKernels::are_there() { return accelerators() > 0 && ops::device_tables(accelerator()) != nullptr; }

}  // namespace colossal::test
