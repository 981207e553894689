// A LibTorch device whose memory the host cannot access. It finds errors of GPU programs on machines without a GPU.
//
//   const at::Device device = test::trap_device();
//   at::Tensor x = at::rand({2, 3}).to(device).requires_grad_();
//   const test::TrapWaits waits(device);
//   x.square().sum().backward();                // kernels of the CPU, on a thread of the engine's, as with CUDA
//   EXPECT_EQ(waits.counts().waits(), 0);       // the host never asked what came out
//   float first = *x.data_ptr<float>();         // ends the process at this line: SIGSEGV
//
// It is LibTorch's PrivateUse1 device, called "trap". Operators run the kernels of the CPU over another mapping of the
// same memory (trap_operators.cpp), at once and in the calling thread. Their results therefore equal the results of the
// same operators on the CPU. The device differs from the CPU in the same way as a GPU: tensors are not is_cpu(), so no
// CPU kernel of the library accepts them. Operands on two devices are refused, except for host tensors without
// dimensions. New memory holds NaN. Generators of the host are refused. Backward runs on a thread of the device.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace colossal::test {

/// Counts of the waits and copies between the host and a device. A copy between the two makes the host wait, as with
/// CUDA, unless it is non_blocking and the host memory is pinned.
///
/// On a stream other than the device's first one, a non-blocking copy is made as late as is allowed. It is made when
/// the host or another stream waits for a later event of that stream, or when other work runs on that stream. Code that
/// reads the target too early, or overwrites the source, therefore gets other numbers. Code that frees either side
/// causes an error.
struct TrapCounts {
  int64_t scalar_reads = 0;        ///< calls of item(), direct or indirect
  int64_t sizes_read = 0;          ///< operators whose result size depends on values (nonzero), and comparisons (equal)
  int64_t copies_to_host = 0;      ///< copies for which the host waits
  int64_t copies_to_device = 0;    ///< copies for which the host waits
  int64_t copies_awaited = 0;      ///< waits of the host for events after delayed copies
  int64_t copies_not_awaited = 0;  ///< non-blocking copies, in both directions
  int64_t bytes_to_host = 0, bytes_to_device = 0;

  int64_t waits() const { return scalar_reads + sizes_read + copies_to_host + copies_to_device + copies_awaited; }
};
TrapCounts operator-(const TrapCounts& a, const TrapCounts& b);
std::ostream& operator<<(std::ostream& out, const TrapCounts& counts);

/// The number of devices. Each rank needs its own one: LibTorch's engine has one thread per device, so thread ranks
/// that shared a device would wait for each other's backward.
constexpr int kTrapDevices = 8;

/// The time of one operator in milliseconds, by the clock of its device. Events read that clock. Nothing else takes
/// time there, so times between events are known numbers.
constexpr double kTrapMilliseconds = 4;

/// Returns device number `index`. The first call registers the backend for the lifetime of the process, as LibTorch
/// does with every backend. It must precede the first backward of the process, which counts the devices.
at::Device trap_device(int index = 0);

/// The counts of `device` since the construction, for all threads.
class TrapWaits {
 public:
  explicit TrapWaits(at::Device device);
  TrapCounts counts() const;

 private:
  at::Device device_;
  TrapCounts before_;
};

/// Returns the current values of `x`, on any device, as a host tensor. This is for tests only and counts no wait.
at::Tensor peek(const at::Tensor& x);

}  // namespace colossal::test
