#include "colossal/comm/launch/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "colossal/base/error.h"
#include "colossal/comm/backends/nccl.h"

namespace colossal::comm {
namespace {

class CudaDevices final : public Devices {
 public:
  at::DeviceType type() const override { return at::kCUDA; }
  int count() const override {
    return at::globalContext().hasCUDA() ? static_cast<int>(at::detail::getCUDAHooks().deviceCount()) : 0;
  }
  std::string pci_id(int index) const override { return pci_id_of_gpu(index); }
};

}  // namespace

const Devices& cuda_devices() {
  static const CudaDevices devices;
  return devices;
}

at::Device choose_device(const std::string& name, int local_rank, const Devices& devices) {
  const int count = name == "cpu" ? 0 : devices.count();
  require(name != "cuda" || count > 0, "run",
          "device cuda needs a CUDA build of LibTorch and a GPU; use --run.device=cpu");
  if (count == 0) return at::kCPU;
  return {devices.type(), static_cast<at::DeviceIndex>(device_of(local_rank, count))};
}

void make_current(at::Device device) {
  if (device.is_cpu()) return;
  at::globalContext().lazyInitDevice(device.type());
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace colossal::comm
