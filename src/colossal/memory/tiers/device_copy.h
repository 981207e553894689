// Copies between a pinned buffer of the host and a device, which go on while the host and the device do other things.
//
//   memory::DeviceCopy copy;
//   copy.to_host(buffer, gradients, stream);     // on a stream of its own, behind what made the gradients
//   ...
//   copy.wait();                                 // before the host looks at the buffer, or anybody writes to it
//   copy.to_device(values, buffer);              // on the current stream
//   buffers.give_back(buffer, std::move(copy));  // who takes the buffer next waits first
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace colossal::memory {

/// The copies of one buffer that were begun last; none at first. Move-only. What it knows outlives nobody: whoever
/// frees the buffer, or has somebody else write to it, waits before.
class DeviceCopy {
 public:
  DeviceCopy() = default;
  DeviceCopy(DeviceCopy&& other) noexcept;
  DeviceCopy& operator=(DeviceCopy&& other) noexcept;

  /// Begins to copy `from`, of a device, to `host`, on `stream`: behind what the current stream of the device was given
  /// so far, which makes `from`, and behind this buffer's copies before. Keeps `from` until the copy is known to be
  /// over; nobody may write to it.
  void to_host(const at::Tensor& host, const at::Tensor& from, c10::Stream stream);
  /// Begins to copy `host` to `to`, on the device's current stream, behind this buffer's copies before.
  void to_device(const at::Tensor& to, const at::Tensor& host);

  /// Whether a copy to the host may be under way still: then the buffer has not its values yet.
  bool fills() const { return !sources_.empty(); }
  /// Whether wait() would return at once. What was kept is freed then.
  bool is_over();
  /// The host waits for the copies, and with a copy to the host for what it is behind.
  void wait();

 private:
  /// `stream` comes behind the copies before.
  void order(c10::Stream stream) const;

  std::optional<c10::Event> last_;   // passes when all are over
  std::vector<at::Tensor> sources_;  // of copies to the host, also of those that another one overwrites
};

}  // namespace colossal::memory
