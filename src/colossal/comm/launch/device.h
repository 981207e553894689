// Which device a rank computes on, and exchanges tensors of.
//
//   const at::Device device = comm::choose_device("auto", world.local_rank());
//   comm::make_current(device);     // launch() has done so when it is asked for "cuda"
#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <string>

namespace colossal::comm {

/// The accelerators that this process may use, numbered from 0: all of the host's, or those that its launcher left it
/// (CUDA_VISIBLE_DEVICES, Slurm's --gpus-per-task).
class Devices {
 public:
  virtual ~Devices() = default;
  virtual at::DeviceType type() const = 0;
  virtual int count() const = 0;
  /// Where device `index` sits on the bus of its host, "0000:3b:00.0": the same for every process of the host, however
  /// many devices each of them may use and whatever numbers they have there.
  virtual std::string pci_id(int index) const = 0;
};

/// CUDA's; none where LibTorch is built without it.
const Devices& cuda_devices();

/// The one rule by which the ranks of a host take devices: which of `count` is local rank `local_rank`'s.
inline int device_of(int local_rank, int count) { return local_rank % count; }

/// The device that `name` ("cpu", "cuda", "auto") means for rank `local_rank` of this host: that of device_of(),
/// of those that this process may use. "auto" is "cuda" where there is a GPU that this build can use, else "cpu".
/// Errors: throws Error("run", ...) for "cuda" without one.
at::Device choose_device(const std::string& name, int local_rank, const Devices& devices = cuda_devices());

/// Why device "auto" means the CPU although this machine has GPUs: one line with the remedy. Empty if `device` is not
/// "auto", `devices` has one, no NVIDIA driver is loaded, or CUDA_VISIBLE_DEVICES hides all GPUs on purpose. `root` is
/// the folder that holds proc/ and dev/; tests pass another.
std::string why_gpus_are_unused(const std::string& device, const Devices& devices = cuda_devices(),
                                const std::filesystem::path& root = "/");

/// From now on what this thread makes, waits for and launches without naming a device is `device`'s. Every library that
/// looks at the current device (NCCL, CUDA's runtime, LibTorch's pinned memory) would else start a context on number 0,
/// for each rank of the host. Nothing happens for the CPU.
void make_current(at::Device device);

}  // namespace colossal::comm
