#include "colossal/memory/stream_aside.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "colossal/tensor/device_meant.h"

namespace colossal::memory {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

c10::Stream new_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamFromGlobalPool(device.has_index() ? device : guard.getDevice());
}

StreamAside::StreamAside(c10::Device device) : device_(device) {
  if (tensor::is_accelerator(device)) stream_ = new_stream(device);
}

StreamAside::~StreamAside() {
  try {
    join();
  } catch (...) {  // the device is broken: its next user gets the error
  }
}

void StreamAside::run(const std::function<void()>& body) {
  std::optional<tensor::TransfersAside::Scope> copies;
  if (tensor::is_for_accelerator(device_)) copies.emplace(copies_);
  if (!stream_) return body();
  c10::Event before(device_.type());
  before.record(current_stream(device_));
  before.block(*stream_);
  const c10::StreamGuard aside(*stream_);
  const auto mark = [&] {
    last_.emplace(device_.type());
    last_->record(*stream_);
  };
  try {
    body();
  } catch (...) {
    mark();  // join() must wait for operators that body() had started
    throw;
  }
  mark();
}

void StreamAside::join() {
  copies_.wait();
  if (!last_) return;
  last_->block(current_stream(device_));
  last_.reset();
}

}  // namespace colossal::memory
