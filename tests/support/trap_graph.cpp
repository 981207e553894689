#include "support/trap_graph.h"

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "support/trap_backend.h"
#include "support/trap_memory.h"

namespace colossal::test {
namespace {

std::atomic<int64_t> captures_made = 0, replays_made = 0;

/// The memory blocks that graphs own. An operator of a graph may still use a block by its address after the last tensor
/// of the block was destroyed.
class GraphMemory {
 public:
  static GraphMemory& of_process() {
    static auto* memory = new GraphMemory();  // never deleted, because threads of LibTorch's engine outlive main
    return *memory;
  }
  void keep(void* address) {
    const std::lock_guard lock(mutex_);
    is_given_back_[address] = false;
  }
  bool has(void* address) {
    const std::lock_guard lock(mutex_);
    return is_given_back_.contains(address);
  }
  /// Marks a block as released by its tensors. Returns false if no graph owns it, so the caller must free it.
  bool give_back(void* address) {
    const std::lock_guard lock(mutex_);
    const auto kept = is_given_back_.find(address);
    if (kept == is_given_back_.end()) return false;
    return kept->second = true;
  }
  /// Ends the graph's ownership of a block. Returns true if its tensors have released it, so the caller must free it.
  bool let_go(void* address) {
    const std::lock_guard lock(mutex_);
    const bool is_free = is_given_back_.at(address);
    is_given_back_.erase(address);
    return is_free;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, bool> is_given_back_;
};

class Recording final : public tensor::Graph {
 public:
  ~Recording() override {
    calls_.clear();  // first, because the calls hold tensors of this memory
    for (void* address : memory_)
      if (GraphMemory::of_process().let_go(address)) TrapMemory::of_process().free(address);
  }
  void replay() override {
    ++replays_made;
    for (const auto& call : calls_) call();
  }
  void add(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
  }
  void keep(void* address) {
    const std::lock_guard lock(mutex_);
    memory_.push_back(address);
    GraphMemory::of_process().keep(address);
  }
  const std::vector<void*>& memory() const { return memory_; }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> calls_;
  std::vector<void*> memory_;  // blocks that were allocated during the recording
};

/// Returns the current recording of a device; null = it does not record.
std::atomic<Recording*>& recording_of(c10::Device device) {
  static std::array<std::atomic<Recording*>, kTrapDevices> open{};
  return open.at(static_cast<size_t>(device.index()));
}

/// A copy of the contents of a device's memory.
class Contents {
 public:
  explicit Contents(c10::Device device) : device_(device) {
    for (const auto& [address, bytes] : trap_blocks(device)) {
      const auto* from = static_cast<const std::byte*>(TrapMemory::of_process().accessible(address));
      bytes_[address].assign(from, from + bytes);
    }
  }
  /// Restores the contents, except in blocks that a graph owns now.
  void restore() const {
    for (const auto& [address, bytes] : trap_blocks(device_)) {
      const auto before = bytes_.find(address);
      if (before == bytes_.end() || GraphMemory::of_process().has(address)) continue;
      std::memcpy(TrapMemory::of_process().accessible(address), before->second.data(), bytes);
    }
  }

 private:
  c10::Device device_;
  std::unordered_map<void*, std::vector<std::byte>> bytes_;
};

/// Undoes all that the recording computed, because a GPU computes nothing while it records. New memory gets NaN, and
/// old memory its old contents.
void forget(const Contents& before, const Recording& recording) {
  before.restore();
  TrapMemory& memory = TrapMemory::of_process();
  for (void* address : recording.memory()) std::memset(memory.accessible(address), 0xFF, memory.bytes_at(address));
}

std::unique_ptr<tensor::Graph> record_on_trap(c10::Device device, const std::function<void()>& body) {
  require(!recording_of(device).load(), "trap", "a device records one graph at a time");
  ++captures_made;
  auto recording = std::make_unique<Recording>();
  const Contents before(device);
  recording_of(device) = recording.get();
  try {
    body();
  } catch (...) {
    recording_of(device) = nullptr;
    forget(before, *recording);
    throw;
  }
  recording_of(device) = nullptr;
  forget(before, *recording);
  return recording;
}

}  // namespace

bool is_recording(c10::Device device) { return recording_of(device).load() != nullptr; }

void record_call(c10::Device device, std::function<void()> call) {
  if (Recording* recording = recording_of(device)) recording->add(std::move(call));
}

void refuse_while_recording(c10::Device device, const char* what) {
  TORCH_CHECK(!is_recording(device), "operation not permitted when stream is capturing: ", what);
}

void keep_for_graph(c10::Device device, void* address) {
  if (Recording* recording = recording_of(device)) recording->keep(address);
}

bool is_given_to_graph(void* address) { return GraphMemory::of_process().give_back(address); }

TrapGraphs::TrapGraphs()
    : scope_(c10::DeviceType::PrivateUse1, &record_on_trap),
      captures_before_(captures_made),
      replays_before_(replays_made) {}

int64_t TrapGraphs::captures() const { return captures_made - captures_before_; }
int64_t TrapGraphs::replays() const { return replays_made - replays_before_; }

}  // namespace colossal::test
