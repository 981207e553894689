// Allocators of the trap device: device memory, with counts; its accessible alias; and pinned memory of the host.
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "colossal/base/error.h"
#include "support/trap_backend.h"
#include "support/trap_memory.h"

namespace colossal::test {
namespace {

void free_forbidden(void* address);

class ForbiddenAllocator final : public c10::DeviceAllocator {
 public:
  static ForbiddenAllocator& instance() {
    // Never deleted, because threads of LibTorch's engine outlive main.
    static auto* allocator = new ForbiddenAllocator();
    return *allocator;
  }
  c10::DataPtr allocate(size_t bytes) override {
    const at::Device device(c10::DeviceType::PrivateUse1, current_trap_device());
    if (bytes == 0) return {nullptr, device};
    return given(TrapMemory::of_process().allocate(bytes), device);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    TrapMemory& memory = TrapMemory::of_process();
    default_copy_data(memory.accessible(to), memory.accessible(from), bytes);
  }
  /// Makes a block memory of the device and counts it.
  c10::DataPtr given(void* address, at::Device device) {
    const size_t bytes = TrapMemory::of_process().bytes_at(address);
    keep_for_graph(device, address);
    const std::lock_guard lock(mutex_);
    blocks_[address] = {device.index(), bytes};
    stat_of(device.index()).increase(bytes);
    return {address, address, &free_forbidden, device};
  }
  void taken_back(void* address) {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(address);
    if (block == blocks_.end()) return;  // the block of an alias, which no tensor of the device has used yet
    stat_of(block->second.device).decrease(block->second.bytes);
    blocks_.erase(block);
  }

  std::vector<std::pair<void*, size_t>> blocks_of(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<void*, size_t>> found;
    for (const auto& [address, block] : blocks_)
      if (block.device == device) found.emplace_back(address, block.bytes);
    return found;
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return stats_.at(static_cast<size_t>(device));
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    stat_of(device).reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    stat_of(device).reset_peak();
  }

 private:
  struct Block {
    c10::DeviceIndex device;
    size_t bytes;
  };
  c10::CachingDeviceAllocator::Stat& stat_of(c10::DeviceIndex device) {
    return stats_.at(static_cast<size_t>(device)).allocated_bytes[0];
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> blocks_;
  std::array<c10::CachingDeviceAllocator::DeviceStats, kTrapDevices> stats_{};
};

void free_forbidden(void* address) {
  ForbiddenAllocator::instance().taken_back(address);
  if (!is_given_to_graph(address)) TrapMemory::of_process().free(address);
}

class AliasAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, at::kCPU};
    TrapMemory& memory = TrapMemory::of_process();
    void* address = memory.allocate(bytes);
    return {memory.accessible(address), address, &free_forbidden, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

/// An allocator of host memory that reports its blocks as pinned.
class PinnedAllocator final : public c10::Allocator {
 public:
  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator();
    return *allocator;
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, at::kCPU};
    auto* address = static_cast<std::byte*>(std::malloc(bytes));
    require(address, "trap", "there is no room for ", bytes, " bytes more");
    const std::lock_guard lock(mutex_);
    blocks_[address] = bytes;
    return {address, address, &release, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool holds(const void* address) {
    const auto* byte = static_cast<const std::byte*>(address);
    const std::lock_guard lock(mutex_);
    const auto after = blocks_.upper_bound(byte);
    if (after == blocks_.begin()) return false;
    const auto& [first, bytes] = *std::prev(after);
    return byte < first + bytes;
  }

 private:
  static void release(void* address) {
    {
      const std::lock_guard lock(instance().mutex_);
      instance().blocks_.erase(static_cast<std::byte*>(address));
    }
    std::free(address);
  }
  std::mutex mutex_;
  std::map<const std::byte*, size_t> blocks_;
};

}  // namespace

c10::Allocator& trap_allocator() { return ForbiddenAllocator::instance(); }

c10::Allocator& trap_alias_allocator() {
  static auto* allocator = new AliasAllocator();
  return *allocator;
}

std::vector<std::pair<void*, size_t>> trap_blocks(c10::Device device) {
  return ForbiddenAllocator::instance().blocks_of(device.index());
}

c10::DataPtr forbidden_of(c10::DataPtr alias, c10::Device device) {
  if (!alias.get()) return {nullptr, device};
  require(alias.get_deleter() == &free_forbidden, "trap", "a kernel put memory of its own into a tensor of the device");
  return ForbiddenAllocator::instance().given(alias.release_context(), device);
}

c10::Allocator& trap_pinned_allocator() { return PinnedAllocator::instance(); }

bool is_trap_pinned(const void* address) { return PinnedAllocator::instance().holds(address); }

}  // namespace colossal::test
