// The device on which a rank computes, and whose tensors it exchanges.
//
//   const at::Device device = comm::choose_device("auto", world.local_rank());
//   comm::make_current(device);     // launch() has done so when it is asked for "cuda"
#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <string>

namespace colossal::comm {

/// The accelerators that this process may use, numbered from 0. These are all accelerators of the host, or those that
/// the launcher left visible (CUDA_VISIBLE_DEVICES, Slurm's --gpus-per-task).
class Devices {
 public:
  virtual ~Devices() = default;
  virtual at::DeviceType type() const = 0;
  virtual int count() const = 0;
  /// Returns the bus address of device `index` on its host, e.g. "0000:3b:00.0". Every process of the host gets the
  /// same address for a device, whatever subset and numbering of devices it sees.
  virtual std::string pci_id(int index) const = 0;
};

/// Returns the CUDA devices; there are none if LibTorch was built without CUDA.
const Devices& cuda_devices();

/// Returns which of `count` devices local rank `local_rank` takes. All code that assigns devices to ranks uses this
/// rule.
inline int device_of(int local_rank, int count) { return local_rank % count; }

/// Returns the device that `name` ("cpu", "cuda", "auto") means for rank `local_rank` of this host. "cuda" is the
/// device of device_of(), counted among those that this process may use. "auto" is "cuda" if there is a GPU that this
/// build can use, else "cpu". Errors: throws Error("run", ...) for "cuda" without a usable GPU.
at::Device choose_device(const std::string& name, int local_rank, const Devices& devices = cuda_devices());

/// Explains in one line, with the remedy, why device "auto" means the CPU although this machine has GPUs. Returns an
/// empty string if `device` is not "auto", `devices` is not empty, no NVIDIA driver is loaded, or
/// CUDA_VISIBLE_DEVICES hides all GPUs on purpose. `root` is the folder that holds proc/ and dev/; tests pass another.
std::string why_gpus_are_unused(const std::string& device, const Devices& devices = cuda_devices(),
                                const std::filesystem::path& root = "/");

/// Makes `device` the current device of the calling thread: it is used for all allocations, waits and launches that
/// name no device. Libraries that look at the current device (NCCL, CUDA's runtime, LibTorch's pinned memory) would
/// otherwise start a context on device 0 for each rank of the host. Does nothing for the CPU.
void make_current(at::Device device);

}  // namespace colossal::comm
