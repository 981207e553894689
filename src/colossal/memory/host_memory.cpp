#include "colossal/memory/host_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <unordered_map>

#include "colossal/base/error.h"
#include "colossal/memory/host_pages.h"

namespace colossal::memory {
namespace {

constexpr size_t kMinPooledBytes = size_t{256} << 10;
constexpr size_t kUnit = size_t{4} << 10;      // unit of the sizes of blocks
constexpr size_t kSegment = size_t{32} << 20;  // bytes taken from the system at a time, unless a tensor is larger

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// A piece of a segment; neighbours in address order are linked so that free ones can merge.
struct Block {
  char* data;
  size_t size;
  Block *before, *after;
  bool free;
};

struct SmallerFirst {
  bool operator()(const Block* a, const Block* b) const {
    return a->size != b->size ? a->size < b->size : a->data < b->data;
  }
};

class HostCache final : public c10::Allocator {
 public:
  explicit HostCache(c10::Allocator* small) : small_(small) {}

  c10::DataPtr allocate(size_t bytes) override {
    const size_t size = round_up(bytes, kUnit);
    void* data = bytes < kMinPooledBytes ? nullptr : take(size);
    // Also if the system has no more memory, because the small allocator words the error.
    if (!data) return small_->allocate(bytes);
    c10::reportMemoryUsageToProfiler(data, static_cast<int64_t>(size), 0, 0, c10::Device(c10::DeviceType::CPU));
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  // oneDNN requests raw memory for its scratch space
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  HostMemory usage() const {
    const std::lock_guard lock(mutex_);
    return usage_;
  }

  void limit(size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }

  size_t release() {
    const std::lock_guard lock(mutex_);
    return release_segments();
  }

  /// Called by the thread that forks: before fork(), and after it in both processes. The child then has a whole cache
  /// whose mutex no thread holds.
  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }

 private:
  static void give_back(void* data);

  size_t release_segments() {
    size_t released = 0;
    for (auto it = free_.begin(); it != free_.end();) {
      Block* block = *it;
      if (block->before || block->after) {
        ++it;
        continue;
      }
      it = free_.erase(it);
      unmap_host_pages(block->data, block->size);
      released += block->size;
      delete block;
    }
    usage_.reserved_bytes -= released;
    return released;
  }

  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    Block wanted{nullptr, bytes, nullptr, nullptr, true};
    auto found = free_.lower_bound(&wanted);
    Block* block = found != free_.end() ? *found : add_segment(bytes);
    if (!block) return nullptr;
    free_.erase(block);
    if (block->size > bytes) {
      auto* rest = new Block{block->data + bytes, block->size - bytes, block, block->after, true};
      if (rest->after) rest->after->before = rest;
      block->after = rest;
      block->size = bytes;
      free_.insert(rest);
    }
    block->free = false;
    usage_.used_bytes += bytes;
    usage_.peak_used_bytes = std::max(usage_.peak_used_bytes, usage_.used_bytes);
    live_.emplace(block->data, block);
    return block->data;
  }

  Block* add_segment(size_t bytes) {
    const size_t size = round_up(std::max(bytes, kSegment), huge_page());
    // No free segment is large enough for the request.
    if (usage_.reserved_bytes + size > limit_) release_segments();
    char* data = map_host_pages(size);
    if (!data && release_segments() > 0) data = map_host_pages(size);
    if (!data) return nullptr;
    usage_.reserved_bytes += size;
    ++usage_.system_requests;
    return *free_.insert(new Block{data, size, nullptr, nullptr, true}).first;
  }

  /// Returns false if `data` is not a block of this cache.
  bool put(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    if (found == live_.end()) return false;
    Block* block = found->second;
    live_.erase(found);
    // Reports before the block becomes free, because another thread may get it, and report it, right after.
    c10::reportMemoryUsageToProfiler(data, -static_cast<int64_t>(block->size), 0, 0, c10::Device(c10::DeviceType::CPU));
    usage_.used_bytes -= block->size;
    if (block->after && block->after->free) {
      free_.erase(block->after);
      absorb_next(block);
    }
    if (block->before && block->before->free) {
      block = block->before;
      free_.erase(block);
      absorb_next(block);
    }
    block->free = true;
    free_.insert(block);
    return true;
  }

  static void absorb_next(Block* block) {
    Block* next = block->after;
    block->size += next->size;
    block->after = next->after;
    if (next->after) next->after->before = block;
    delete next;
  }

  mutable std::mutex mutex_;
  std::set<Block*, SmallerFirst> free_;
  std::unordered_map<void*, Block*> live_;
  HostMemory usage_;
  size_t limit_ = std::numeric_limits<size_t>::max();
  c10::Allocator* small_;
};

// There is one per process, like the allocator it replaces. It is never destroyed, because tensors of static duration
// may outlive it.
std::atomic<HostCache*> installed{nullptr};

void HostCache::give_back(void* data) {
  auto* cache = installed.load(std::memory_order_acquire);
  if (data && !cache->put(data)) cache->small_->raw_deleter()(data);
}

}  // namespace

void keep_host_memory() {
  static const bool once = [] {
    auto* cache = new HostCache(c10::GetCPUAllocator());
    installed.store(cache, std::memory_order_release);
    c10::SetCPUAllocator(cache, /*priority=*/1);
    const auto after = [] { installed.load(std::memory_order_acquire)->after_fork(); };
    const int error = pthread_atfork([] { installed.load(std::memory_order_acquire)->before_fork(); }, after, after);
    require(error == 0, "memory", "handlers of fork() must be registered: got ", std::strerror(error));
    return true;
  }();
  (void)once;
}

HostMemory host_memory() {
  const auto* cache = installed.load(std::memory_order_acquire);
  return cache ? cache->usage() : HostMemory{};
}

void limit_host_memory(size_t bytes) {
  if (auto* cache = installed.load(std::memory_order_acquire)) cache->limit(bytes);
}

size_t release_host_memory() {
  auto* cache = installed.load(std::memory_order_acquire);
  return cache ? cache->release() : 0;
}

}  // namespace colossal::memory
