// A device of LibTorch's whose memory the host cannot touch: what a GPU shows up in, on machines that have none.
//
//   const at::Device device = test::trap_device();
//   at::Tensor x = at::rand({2, 3}).to(device).requires_grad_();
//   const test::TrapWaits waits(device);
//   x.square().sum().backward();                // kernels of the CPU, on a thread of the engine's, as with CUDA
//   EXPECT_EQ(waits.counts().waits(), 0);       // the host never asked what came out
//   float first = *x.data_ptr<float>();         // ends the process at this line: SIGSEGV
//
// It is LibTorch's PrivateUse1, called "trap". Operators run the kernels of the CPU over another mapping of the same
// memory (trap_operators.cpp), at once and in the calling thread, so the numbers are those of the same operators on
// the CPU. What differs is what a GPU differs in: tensors are not is_cpu(), so no CPU kernel of ours takes them;
// operands on two devices are refused, but for numbers (tensors of the host without dimensions); fresh memory holds
// NaN; generators of the host are refused; backward runs on a thread of the device.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace colossal::test {

/// How often the host and a device met. A copy between the two makes the host wait as CUDA's does: unless it is asked
/// to be non_blocking and the side of the host is pinned. On a stream that is not the device's first such a copy is
/// made as late as it may be: when somebody waits for an event behind it, the host or another stream, or something
/// else runs on that stream. So who reads it too early, or writes to where it comes from, gets other numbers; who frees
/// either side ends in an error.
struct TrapCounts {
  int64_t scalar_reads = 0;        ///< item() and what asks for it
  int64_t sizes_read = 0;          ///< operators whose result has as many elements as the numbers say, and comparisons
  int64_t copies_to_host = 0;      ///< that wait
  int64_t copies_to_device = 0;    ///< that wait
  int64_t copies_awaited = 0;      ///< that were asked for without a wait, until somebody waited for them after all
  int64_t copies_not_awaited = 0;  ///< when they were asked for, in either direction
  int64_t bytes_to_host = 0, bytes_to_device = 0;

  int64_t waits() const { return scalar_reads + sizes_read + copies_to_host + copies_to_device + copies_awaited; }
};
TrapCounts operator-(const TrapCounts& a, const TrapCounts& b);
std::ostream& operator<<(std::ostream& out, const TrapCounts& counts);

/// How many devices there are: more than one, so that ranks that are threads have one each. The threads of LibTorch's
/// engine belong to a device: ranks that shared one would wait for one another's backward.
constexpr int kTrapDevices = 8;

/// What an operator takes by the clock of the device that ran it, which is what events read: nothing else takes time
/// there, so that times between events are known numbers.
constexpr double kTrapMilliseconds = 4;

/// Device number `index`. The first call registers the backend: for the process and for ever, as LibTorch registers all
/// of them; it has to come before the first backward of the process, which counts the devices.
at::Device trap_device(int index = 0);

/// What has happened on `device` since this was made, by any thread.
class TrapWaits {
 public:
  explicit TrapWaits(at::Device device);
  TrapCounts counts() const;

 private:
  at::Device device_;
  TrapCounts before_;
};

/// The numbers of `x`, of whatever device, as they are there now, for the eyes of a test: no wait is counted.
at::Tensor peek(const at::Tensor& x);

}  // namespace colossal::test
