#include "colossal/memory/tiers/host_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "colossal/memory/account.h"
#include "colossal/memory/tiers/aligned_tensor.h"

namespace colossal::memory {

at::Tensor HostBuffers::take(int64_t bytes) {
  at::Tensor buffer;
  const auto found = idle_.find(bytes);
  if (found != idle_.end()) {
    buffer = found->second;
    idle_bytes_ -= found->first;
    idle_.erase(found);
  } else {
    while (!idle_.empty() && in_use_ + idle_bytes_ + bytes > budget_) {
      idle_bytes_ -= idle_.rbegin()->first;
      idle_.erase(std::prev(idle_.end()));
    }
    const KindScope kind(Kind::Host);
    buffer = empty_aligned({bytes}, at::kByte);
  }
  in_use_ += buffer.numel();
  peak_ = std::max(peak_, held());
  return buffer;
}

void HostBuffers::give_back(at::Tensor buffer) {
  const int64_t bytes = buffer.numel();
  in_use_ -= bytes;
  idle_bytes_ += bytes;
  idle_.emplace(bytes, std::move(buffer));
}

}  // namespace colossal::memory
