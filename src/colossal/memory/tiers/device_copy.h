// Copies between a pinned host buffer and a device that overlap with other work of both.
//
//   memory::DeviceCopy copy;
//   copy.to_host(buffer, gradients, stream);     // on a stream of its own, after the work that made the gradients
//   ...
//   copy.wait();                                 // before the host reads the buffer, or any code writes to it
//   copy.to_device(values, buffer);              // on the current stream
//   buffers.give_back(buffer, std::move(copy));  // the next user of the buffer waits first
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>
#include <vector>

namespace colossal::memory {

/// The most recent copies from and to one buffer; initially none. Move-only. It does not own the buffer: before a
/// caller frees the buffer, or lets other code write to it, the caller must wait().
class DeviceCopy {
 public:
  DeviceCopy() = default;
  DeviceCopy(DeviceCopy&& other) noexcept;
  DeviceCopy& operator=(DeviceCopy&& other) noexcept;

  /// Starts to copy `from`, a tensor of a device, to `host` on `stream`. The copy runs after the work that the device's
  /// current stream, which computes `from`, has received so far, and after earlier copies of this buffer. Keeps `from`
  /// until the copy is known to be over; no code may write to `from` until then.
  void to_host(const at::Tensor& host, const at::Tensor& from, c10::Stream stream);
  /// Starts to copy `host` to `to` on the device's current stream, after earlier copies of this buffer.
  void to_device(const at::Tensor& to, const at::Tensor& host);

  /// Returns whether a copy to the host may still be running, so that the buffer does not hold its values.
  bool fills() const { return !sources_.empty(); }
  /// Returns whether wait() would return at once. If so, frees the tensors that were kept.
  bool is_over();
  /// Blocks the host until the copies are over; a copy to the host includes the work that it runs after.
  void wait();

 private:
  /// Makes `stream` wait for earlier copies.
  void order(c10::Stream stream) const;

  std::optional<c10::Event> last_;   // reached when all copies are over
  std::vector<at::Tensor> sources_;  // sources of copies to the host, including copies that a later one overwrites
};

}  // namespace colossal::memory
