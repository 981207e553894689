#include "colossal/comm/launch/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "colossal/base/cuda_build.h"
#include "colossal/base/error.h"
#include "colossal/comm/backends/c10d.h"

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

/// Returns true if a driver is loaded. Under WSL the device is /dev/dxg, and the driver's library is in a folder of its
/// own.
bool has_nvidia_driver(const std::filesystem::path& root) {
  const auto exists = [&](const char* path) {
    std::error_code ignored;
    return std::filesystem::exists(root / path, ignored);
  };
  return exists("proc/driver/nvidia/version") || exists("dev/nvidiactl") ||
         (exists("dev/dxg") && exists("usr/lib/wsl/lib/libcuda.so"));
}

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

std::string why_gpus_are_unused(const std::string& device, const Devices& devices, const std::filesystem::path& root) {
  if (device != "auto" || devices.count() > 0 || !has_nvidia_driver(root)) return "";
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible && (*visible == '\0' || *visible == '-')) return "";
  const std::string& problem = cuda_build().libtorch;
  return concat("this machine has an NVIDIA driver, but the run uses the CPU: ",
                problem.empty() ? "CUDA finds no device; see nvidia-smi for the driver, which may be too old" : problem,
                "; --run.device=cpu silences this");
}

void make_current(at::Device device) {
  if (device.is_cpu()) return;
  at::globalContext().lazyInitDevice(device.type());
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace colossal::comm
