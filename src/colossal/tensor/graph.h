// Graphs of device operators (CUDA graphs): a sequence that is captured once and then launched as one, where the host
// would otherwise launch each operator every time.
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

/// A captured sequence of operators. Every value that the host used during the capture is fixed in it. Values that
/// change from one replay to the next must be in tensors on the device.
class Graph {
 public:
  virtual ~Graph() = default;
  /// Queues all operators on the device's current stream, where they read and write the captured memory. Does not wait.
  virtual void replay() = 0;
};

/// Captures on a device of one kind.
using Capture = std::unique_ptr<Graph> (*)(c10::Device device, const std::function<void()>& body);

/// Returns true if capture() supports this kind of device: CUDA, in a build that found its headers.
bool can_capture(c10::DeviceType type);

/// Captures the operators that body() runs on `device`, without computing them. Operators of a backward pass, which run
/// on the autograd engine's threads, are captured too. Values of tensors that body() makes are undefined before the
/// first replay; other tensors keep their values.
///
/// Memory: the graph owns all memory that body() allocates, also memory that body() frees, until the graph is
///         destroyed.
/// Errors: throws ("graph") if can_capture() is false. The device refuses a body that waits for the device, or copies
///         between device and host. Exceptions of body() are rethrown. Nothing is captured in these cases.
/// Cost:   about one call of body(), plus tens of microseconds per kernel. A replay costs the host about 2 us, and the
///         device about 1 us per kernel, in place of 5 to 10 us of the host per kernel.
std::unique_ptr<Graph> capture(c10::Device device, const std::function<void()>& body);

/// Returns true while body() of capture() runs on this thread: it must not wait for the device.
bool is_capturing();

/// Replaces the capture function of a kind of device during the scope's lifetime; null = capture is unsupported. Only
/// tests use it. Thread safety: construct and destroy it while no other thread captures.
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

/// Returns the function that captures on CUDA devices; null = this build has none. It is in cuda_graph.cpp if the CUDA
/// headers were found at build time, in no_cuda_graph.cpp otherwise.
Capture cuda_capture();

}  // namespace colossal::tensor
