// What an accelerator does beside what it computes: copies, and exchanges with other ranks, on a stream of their own.
//
//   memory::StreamAside aside(device);
//   const at::Tensor to = at::empty({n}, options);
//   aside.run([&] { to.copy_(pinned, /*non_blocking=*/true); });   // begins when what was asked for before is done
//   compute();                                                     // goes on meanwhile
//   aside.join();                                                  // `to` may be read from here on
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace colossal::memory {

/// The current stream of `device`, an accelerator, on this thread.
c10::Stream current_stream(c10::Device device);
/// Another one.
c10::Stream new_stream(c10::Device device);

/// A stream beside the current one of a device. On the CPU and on meta nothing is aside: run() is its body.
class StreamAside {
 public:
  explicit StreamAside(c10::Device device);
  /// join(), so that memory that is freed afterwards is used again when nothing aside has it any more.
  ~StreamAside();
  StreamAside(const StreamAside&) = delete;
  StreamAside& operator=(const StreamAside&) = delete;

  /// body(), whose operators go to this stream: they come behind what the current stream was given so far, since memory
  /// that is new there may be what that stream uses still, and beside what it is given from now on.
  void run(const std::function<void()>& body);
  /// What the current stream is given from now on comes behind all that run() was given. The host does not wait.
  void join();

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> last_;  // of what join() has not seen
};

}  // namespace colossal::memory
