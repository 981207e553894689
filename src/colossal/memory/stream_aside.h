// A side stream of an accelerator: copies, and exchanges with other ranks, that overlap with its computation.
//
//   memory::StreamAside aside(device);
//   const at::Tensor to = at::empty({n}, options);
//   aside.run([&] { to.copy_(pinned, /*non_blocking=*/true); });   // begins after the current stream's work
//   compute();                                                     // overlaps with the copy
//   aside.join();                                                  // `to` may be read from here on
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

#include "colossal/tensor/transfers.h"

namespace colossal::memory {

/// Returns the current stream of `device`, an accelerator, on this thread.
c10::Stream current_stream(c10::Device device);
/// Returns another stream of `device`, an accelerator.
c10::Stream new_stream(c10::Device device);

/// A stream that runs in parallel with the current stream of a device. The CPU and meta have no such stream: run()
/// calls its body directly. If meta stands for an accelerator, copies to the device that body() announces are waited
/// for in join(), as there.
class StreamAside {
 public:
  explicit StreamAside(c10::Device device);
  /// Calls join(), so that memory that is freed afterwards is reused only when the side stream has finished with it.
  ~StreamAside();
  StreamAside(const StreamAside&) = delete;
  StreamAside& operator=(const StreamAside&) = delete;

  /// Runs body(), whose operators go to this stream. They start after the work that the current stream has received so
  /// far, because that stream may still use memory that is newly allocated there. They overlap with the work it
  /// receives later.
  void run(const std::function<void()>& body);
  /// Makes the current stream wait for all work passed to run(). Does not block the host.
  void join();

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> last_;  // end of the work that join() has not waited for
  tensor::TransfersAside copies_;   // the copies of that work
};

}  // namespace colossal::memory
