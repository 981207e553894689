// Operators of a device recorded once and launched as one: what the host would otherwise launch one by one, again and
// again (CUDA graphs).
//
//   at::Tensor input = at::empty({8, 64}, on_device), output;           // live as long as the graph
//   forward(input);                                                      // once as it is: tables and plans are made
//   const auto graph = tensor::capture(device, [&] { output = forward(input); });   // computes nothing yet
//   for (...) {
//     input.copy_(next);                                                 // before each replay, outside of the graph
//     graph->replay();                                                   // output has forward(next)
//   }
#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace colossal::tensor {

/// A recorded run of operators. Whatever the host knew while it was recorded is part of the recording: numbers that are
/// to change from one replay to the next have to be in tensors of the device.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Queues all of it on the device's current stream: reads and writes the memory that was recorded. Nobody waits.
  virtual void replay() = 0;
};

/// Records on a device of one kind.
using Capture = std::unique_ptr<Graph> (*)(c10::Device device, const std::function<void()>& body);

/// Whether capture() can record there: CUDA, in a build that found its headers.
bool can_capture(c10::DeviceType type);

/// Records the operators that body() runs on `device`, those of a backward pass on the engine's threads too, and does
/// not compute them: the numbers of tensors that it makes are undefined before the first replay, those of others are as
/// they were.
///
/// Memory: what body() allocates belongs to the graph, also what it frees, until the graph is gone.
/// Errors: throws ("graph") where can_capture() is false. A body that waits for the device, or copies between it and
///         the host, is refused by the device; what body() throws is thrown on. Nothing is recorded then.
/// Cost:   about that of running body() once, and tens of microseconds a kernel; a replay about 2 us and 1 us a kernel
///         of the device's time, in place of 5 to 10 of the host's.
std::unique_ptr<Graph> capture(c10::Device device, const std::function<void()>& body);

/// Gives a kind of device another way to record, or with null none, while it lives: for tests. Threads: make and end it
/// while no other thread captures.
class CaptureScope {
 public:
  CaptureScope(c10::DeviceType type, Capture capture);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

 private:
  c10::DeviceType type_;
  Capture before_;
};

}  // namespace colossal::tensor
