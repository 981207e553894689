#include "colossal/memory/account.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::memory {

/// Allocators report to it by way of the thread's debug info, which autograd hands on to its own threads.
struct Ledger : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* pointer, int64_t change, size_t, size_t, c10::Device) override {
    const std::lock_guard lock(mutex);
    if (change >= 0) {
      blocks[pointer] = {kind, change};
      add(kind, change);
    } else if (const auto found = blocks.find(pointer); found != blocks.end()) {
      add(found->second.first, -found->second.second);
      blocks.erase(found);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }
  void add(Kind of, int64_t bytes) {
    const auto i = static_cast<size_t>(of);
    usage.live[i] += bytes;
    usage.peak[i] = std::max(usage.peak[i], usage.live[i]);
    usage.total += bytes;
    usage.peak_total = std::max(usage.peak_total, usage.total);
  }

  std::mutex mutex;
  Kind kind = Kind::Buffers;
  Account::Usage usage;
  std::unordered_map<void*, std::pair<Kind, int64_t>> blocks;
};

struct Account::Guard {
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  c10::DebugInfoGuard open{c10::DebugInfoKind::PROFILER_STATE, ledger};
};

const char* to_string(Kind kind) {
  static constexpr const char* kNames[] = {"parameters", "gradients", "states", "activations", "buffers"};
  return kNames[static_cast<size_t>(kind)];
}

Account::Account() {
  require(!c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE), "memory",
          "an account or a profiler is open on this thread already");
  guard_ = std::make_unique<Guard>();
}

Account::~Account() = default;

Account::Usage Account::usage() const {
  const std::lock_guard lock(guard_->ledger->mutex);
  return guard_->ledger->usage;
}

void Account::reset_peaks() {
  const std::lock_guard lock(guard_->ledger->mutex);
  Usage& usage = guard_->ledger->usage;
  usage.peak = usage.live;
  usage.peak_total = usage.total;
}

KindScope::KindScope(Kind kind)
    : ledger_(dynamic_cast<Ledger*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE))) {
  if (ledger_) before_ = std::exchange(ledger_->kind, kind);
}

KindScope::~KindScope() {
  if (ledger_) ledger_->kind = before_;
}

}  // namespace colossal::memory
