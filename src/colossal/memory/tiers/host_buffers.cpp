#include "colossal/memory/tiers/host_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "colossal/memory/account.h"
#include "colossal/memory/tiers/aligned_tensor.h"

namespace colossal::memory {

HostBuffers::~HostBuffers() {
  while (!idle_.empty()) {
    try {
      take_idle(idle_.begin());
    } catch (...) {  // the device is broken: no copy is running any more
      idle_.erase(idle_.begin());
    }
  }
}

at::Tensor HostBuffers::take_idle(IdleOnes::iterator found) {
  found->second.under_way.wait();
  idle_bytes_ -= found->first;
  const at::Tensor buffer = std::move(found->second.buffer);
  idle_.erase(found);
  return buffer;
}

HostBuffers::IdleOnes::iterator HostBuffers::nearest(int64_t bytes) {
  const auto longer = idle_.lower_bound(bytes);
  if (longer == idle_.begin()) return longer;
  const auto shorter = std::prev(longer);
  return longer != idle_.end() && longer->first - bytes < bytes - shorter->first ? longer : shorter;
}

at::Tensor HostBuffers::other_idle(int64_t bytes) {
  if (pinned_) return {};  // the device has locked the pages as they are
  const auto found = nearest(bytes);
  if (found == idle_.end()) return {};
  const at::Tensor buffer = resized_aligned(found->second.buffer, bytes);
  if (buffer.defined()) take_idle(found);
  return buffer;
}

at::Tensor HostBuffers::take(int64_t bytes) {
  const KindScope kind(Kind::Host);
  const auto [first, end] = idle_.equal_range(bytes);
  auto found = std::find_if(first, end, [](auto& idle) { return idle.second.under_way.is_over(); });
  // The copies of the buffer that was returned first are over first.
  if (found == end && held() + bytes > budget_) found = first;
  at::Tensor buffer;
  if (found != end) {
    buffer = take_idle(found);
  } else {
    buffer = other_idle(bytes);
    while (!idle_.empty() && held() + bytes > budget_) take_idle(std::prev(idle_.end()));
    if (!buffer.defined()) buffer = empty_aligned({bytes}, at::device(device_).dtype(at::kByte).pinned_memory(pinned_));
  }
  in_use_ += buffer.numel();
  peak_ = std::max(peak_, held());
  return buffer;
}

void HostBuffers::give_back(at::Tensor buffer, DeviceCopy under_way) {
  const int64_t bytes = buffer.numel();
  in_use_ -= bytes;
  idle_bytes_ += bytes;
  idle_.emplace(bytes, Idle{std::move(buffer), std::move(under_way)});
}

}  // namespace colossal::memory
