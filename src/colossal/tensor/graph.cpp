#include "colossal/tensor/graph.h"

#include <array>
#include <atomic>

#include "colossal/base/error.h"

namespace colossal::tensor {
namespace {

/// Returns the capture function of a kind of device; the slots are indexed by the number of the kind.
std::atomic<Capture>& capture_of(c10::DeviceType type) {
  static std::array<std::atomic<Capture>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> slots{};
  [[maybe_unused]] static const bool has_cuda = [] {
    slots[static_cast<size_t>(c10::DeviceType::CUDA)] = cuda_capture();
    return true;
  }();
  return slots[static_cast<size_t>(type)];
}

thread_local bool captures = false;

}  // namespace

bool can_capture(c10::DeviceType type) { return capture_of(type).load() != nullptr; }

std::unique_ptr<Graph> capture(c10::Device device, const std::function<void()>& body) {
  const Capture record = capture_of(device.type());
  require(record, "graph", "operators on ", device.str(),
          " cannot be recorded: this needs CUDA, and a build with the CUDA headers of torch");
  return record(device, [&body] {
    struct Capturing {
      Capturing() { captures = true; }
      ~Capturing() { captures = before; }
      const bool before = captures;
    } const scope;
    body();
  });
}

bool is_capturing() { return captures; }

CaptureScope::CaptureScope(c10::DeviceType type, Capture capture)
    : type_(type), before_(capture_of(type).exchange(capture)) {}
CaptureScope::~CaptureScope() { capture_of(type_) = before_; }

}  // namespace colossal::tensor
