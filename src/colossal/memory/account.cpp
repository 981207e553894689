#include "colossal/memory/account.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::memory {

/// The points of Account::begin_curve().
class MemoryCurve {
 public:
  /// Called before a change of `usage`, at the moment `at`: what is there now holds from the last change on.
  void open(int64_t at, const Account::Usage& usage) {
    if (!points_.empty() && points_.back().at == at) return;
    // The last point has the most memory of its own moment. If other moments follow it, they have what is there now.
    if (!points_.empty() && points_.back().at + 1 < at) start(points_.back().at + 1, usage);
    start(at, usage);
  }
  /// Called after a change.
  void note(const Account::Usage& usage) {
    points_.back().host = std::max(points_.back().host, usage.of(Kind::Host));
    if (usage.device <= device_) return;
    device_ = usage.device;
    points_.back().live = usage.live;
  }
  std::vector<Account::Point> take() { return std::move(points_); }

 private:
  void start(int64_t at, const Account::Usage& usage) {
    points_.push_back({at, usage.live, usage.of(Kind::Host)});
    device_ = usage.device;
  }
  std::vector<Account::Point> points_;
  int64_t device_ = 0;  // of the last point
};

/// Counts of one account. Allocators report to it through the thread's debug info, which autograd passes to its own
/// threads.
struct Ledger : c10::MemoryReportingInfoBase, std::enable_shared_from_this<Ledger> {
  void reportMemoryUsage(void* pointer, int64_t change, size_t, size_t, c10::Device device) override {
    report(pointer, change, device);
  }
  /// `change`: the bytes of a new block; negative: the block is freed. Meta's blocks are shapes, all others memory.
  void report(const void* block, int64_t change, c10::Device device) {
    const Counted ignores = device.is_meta() ? Counted::Memory : Counted::Shapes;
    for (Ledger* each = this; each; each = each->outer.get())
      if (each->counted != ignores) each->count(block, change, kind);
  }
  bool counts_shapes() const { return counted != Counted::Memory || (outer && outer->counts_shapes()); }
  void count(const void* pointer, int64_t change, Kind of) {
    const std::lock_guard lock(mutex);
    // A block that is allocated again was freed on a thread without an account, so its earlier allocation ends here.
    if (const auto found = blocks.find(pointer); found != blocks.end()) {
      add(found->second.first, -found->second.second);
      blocks.erase(found);
    }
    if (change < 0) return;
    blocks[pointer] = {of, change};
    add(of, change);
  }
  /// Turns off the reports of LibTorch's own host allocator, because it warns about every block that it allocated
  /// before reporting started. Reporting reports instead.
  bool memoryProfilingEnabled() const override { return false; }
  void add(Kind of, int64_t bytes) {
    if (curve) curve->open(now(), usage);
    change(of, bytes);
    if (curve) curve->note(usage);
  }
  void change(Kind of, int64_t bytes) {
    const auto i = static_cast<size_t>(of);
    usage.live[i] += bytes;
    usage.peak[i] = std::max(usage.peak[i], usage.live[i]);
    usage.total += bytes;
    usage.peak_total = std::max(usage.peak_total, usage.total);
    if (of == Kind::Host) return;
    usage.device += bytes;
    if (usage.device <= usage.peak_device) return;
    usage.peak_device = usage.device;
    if (now) usage.moment = now();
  }

  std::mutex mutex;
  std::shared_ptr<Ledger> outer;  // the account that was open when this one was opened
  Kind kind = Kind::Buffers;
  Counted counted = Counted::Memory;
  std::function<int64_t()> now;
  Account::Usage usage;
  std::optional<MemoryCurve> curve;  // while it is recorded
  std::unordered_map<const void*, std::pair<Kind, int64_t>> blocks;
};

namespace {

Ledger* open_ledger() {
  return dynamic_cast<Ledger*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
}

/// Wraps the host allocator that was installed before, and reports its blocks to accounts.
class Reporting final : public c10::Allocator {
 public:
  /// Makes every later tensor of the host use this allocator. There is one per process, never destroyed, because
  /// tensors of static duration may outlive it.
  static bool install() {
    c10::Allocator* before = c10::GetCPUAllocator();
    take_back = before->raw_deleter();
    c10::SetCPUAllocator(new Reporting(before), /*priority=*/1);
    return true;
  }
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr given = before_->allocate(bytes);
    if (!given) return given;
    const c10::Device device = given.device();
    void* block = given.release_context();  // freed by take_back()
    if (Ledger* ledger = open_ledger()) ledger->report(block, static_cast<int64_t>(bytes), device);
    return {block, block, &report_and_take_back, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &report_and_take_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { before_->copy_data(to, from, bytes); }

 private:
  explicit Reporting(c10::Allocator* before) : before_(before) {}
  static void report_and_take_back(void* block) {
    // Reports before freeing, because another thread may get the block, and report it, right after. Accounts know its
    // size.
    Ledger* ledger = block ? open_ledger() : nullptr;
    if (ledger) ledger->report(block, -1, c10::Device(c10::DeviceType::CPU));
    take_back(block);
  }
  static inline c10::DeleterFnPtr take_back = nullptr;
  c10::Allocator* before_;
};

/// Stands in front of meta's allocator, which gives no memory and so no address. A storage that is counted gets a block
/// of one byte as the context of its pointer, whose address identifies it. The pointer itself stays null.
class ReportingShapes final : public c10::Allocator {
 public:
  /// There is one per process, never destroyed, as of Reporting.
  static bool install() {
    c10::SetAllocator(kMeta, new ReportingShapes(c10::GetAllocator(kMeta)), /*priority=*/1);
    return true;
  }
  c10::DataPtr allocate(size_t bytes) override {
    Ledger* ledger = bytes > 0 ? open_ledger() : nullptr;
    if (!ledger || !ledger->counts_shapes()) return before_->allocate(bytes);
    auto* block = new char;
    ledger->report(block, static_cast<int64_t>(bytes), kMeta);
    return {nullptr, block, &report_and_free, kMeta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static constexpr c10::DeviceType kMeta = c10::DeviceType::Meta;
  explicit ReportingShapes(c10::Allocator* before) : before_(before) {}
  static void report_and_free(void* block) {
    // Reports before freeing, because another thread may get the address right after.
    if (Ledger* ledger = open_ledger()) ledger->report(block, -1, kMeta);
    delete static_cast<char*>(block);
  }
  c10::Allocator* before_;
};

}  // namespace

void track_host_memory() {
  [[maybe_unused]] static const bool is_installed = Reporting::install() && ReportingShapes::install();
}

struct Account::Guard {
  Guard(Ledger* outer, Counted counted, std::function<int64_t()> now) {
    ledger->counted = counted;
    ledger->now = std::move(now);
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

Account::Account(Counted counted, std::function<int64_t()> now) {
  c10::DebugInfoBase* there = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  auto* outer = dynamic_cast<Ledger*>(there);
  require(!there || outer, "memory", "an account needs a thread without an open profiler: got one; close it");
  track_host_memory();
  guard_ = std::make_unique<Guard>(outer, counted, std::move(now));
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
  if (guard_->ledger->now) usage.moment = guard_->ledger->now();
}

void Account::begin_curve() {
  const std::lock_guard lock(guard_->ledger->mutex);
  require(guard_->ledger->now != nullptr, "memory", "a curve needs an account that knows the moment: got none; ",
          "construct the account with `now`");
  guard_->ledger->curve.emplace().open(guard_->ledger->now(), guard_->ledger->usage);
}

std::vector<Account::Point> Account::end_curve() {
  const std::lock_guard lock(guard_->ledger->mutex);
  std::optional<MemoryCurve> curve = std::exchange(guard_->ledger->curve, std::nullopt);
  if (!curve) return {};
  curve->open(guard_->ledger->now(), guard_->ledger->usage);  // the last change may be before the last moment
  return curve->take();
}

bool are_shapes_counted() {
  const Ledger* ledger = open_ledger();
  return ledger && ledger->counts_shapes();
}

void count_block(const void* block, int64_t bytes) {
  if (Ledger* ledger = open_ledger()) ledger->report(block, bytes, c10::Device(c10::DeviceType::CPU));
}

void end_block(const void* block) {
  if (Ledger* ledger = open_ledger()) ledger->report(block, -1, c10::Device(c10::DeviceType::CPU));
}

KindScope::KindScope(Kind kind) : ledger_(open_ledger()) {
  if (ledger_) before_ = std::exchange(ledger_->kind, kind);
}

KindScope::~KindScope() {
  if (ledger_) ledger_->kind = before_;
}

}  // namespace colossal::memory
