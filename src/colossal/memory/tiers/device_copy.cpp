#include "colossal/memory/tiers/device_copy.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <utility>

#include "colossal/memory/stream_aside.h"

namespace colossal::memory {
namespace {

c10::Event recorded(c10::Stream stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

DeviceCopy::DeviceCopy(DeviceCopy&& other) noexcept
    : last_(std::exchange(other.last_, std::nullopt)), sources_(std::exchange(other.sources_, {})) {}

DeviceCopy& DeviceCopy::operator=(DeviceCopy&& other) noexcept {
  last_ = std::exchange(other.last_, std::nullopt);
  sources_ = std::exchange(other.sources_, {});
  return *this;
}

void DeviceCopy::order(c10::Stream stream) const {
  if (last_) last_->block(stream);
}

void DeviceCopy::to_host(const at::Tensor& host, const at::Tensor& from, c10::Stream stream) {
  recorded(current_stream(from.device())).block(stream);  // the current stream computes `from`
  order(stream);                                          // earlier copies may still read the buffer or write to it
  const c10::StreamGuard aside(stream);
  host.copy_(from, /*non_blocking=*/true);
  last_.emplace(recorded(stream));
  // The memory of `from` belongs to the stream that made it, which would reuse it without waiting for this one.
  sources_.push_back(from);
}

void DeviceCopy::to_device(const at::Tensor& to, const at::Tensor& host) {
  const c10::Stream stream = current_stream(to.device());
  order(stream);  // an earlier copy may still write the values to the host
  to.copy_(host, /*non_blocking=*/true);
  last_.emplace(recorded(stream));  // after the earlier copy, whose source is kept until this event is reached
}

bool DeviceCopy::is_over() {
  if (!last_ || !last_->query()) return !last_;
  last_.reset();
  sources_.clear();
  return true;
}

void DeviceCopy::wait() {
  if (!last_) return;
  last_->synchronize();
  last_.reset();
  sources_.clear();
}

}  // namespace colossal::memory
