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
struct Ledger : c10::MemoryReportingInfoBase, std::enable_shared_from_this<Ledger> {
  void reportMemoryUsage(void* pointer, int64_t change, size_t, size_t, c10::Device) override {
    for (Ledger* each = this; each; each = each->outer.get()) each->count(pointer, change, kind);
  }
  void count(void* pointer, int64_t change, Kind of) {
    const std::lock_guard lock(mutex);
    if (change >= 0) {
      blocks[pointer] = {of, change};
      add(of, change);
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
    if (of == Kind::Host) return;
    usage.device += bytes;
    usage.peak_device = std::max(usage.peak_device, usage.device);
  }

  std::mutex mutex;
  std::shared_ptr<Ledger> outer;  // the account that was open before
  Kind kind = Kind::Buffers;
  Account::Usage usage;
  std::unordered_map<void*, std::pair<Kind, int64_t>> blocks;
};

struct Account::Guard {
  explicit Guard(Ledger* outer) {
    if (!outer) return;
    ledger->outer = outer->shared_from_this();
    ledger->kind = outer->kind;
  }
  std::shared_ptr<Ledger> ledger = std::make_shared<Ledger>();
  c10::DebugInfoGuard open{c10::DebugInfoKind::PROFILER_STATE, ledger};
};

const char* to_string(Kind kind) {
  static constexpr const char* kNames[] = {"parameters", "gradients", "states", "activations", "buffers", "host"};
  return kNames[static_cast<size_t>(kind)];
}

Account::Account() {
  c10::DebugInfoBase* there = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  auto* outer = dynamic_cast<Ledger*>(there);
  require(!there || outer, "memory", "a profiler is open on this thread, where an account would count; close it");
  guard_ = std::make_unique<Guard>(outer);
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
  usage.peak_device = usage.device;
}

KindScope::KindScope(Kind kind)
    : ledger_(dynamic_cast<Ledger*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE))) {
  if (ledger_) before_ = std::exchange(ledger_->kind, kind);
}

KindScope::~KindScope() {
  if (ledger_) ledger_->kind = before_;
}

}  // namespace colossal::memory
