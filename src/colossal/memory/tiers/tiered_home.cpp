#include "colossal/memory/tiers/tiered_home.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/memory/tiers/host_buffers.h"
#include "colossal/memory/timeline.h"

namespace colossal::memory {

namespace {

/// A tensor of the home. Its members belong to the home's mutex.
struct Tenant {
  enum class Moving { No, In, Out };

  size_t number;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  int64_t bytes;         // that it takes of a budget; its buffer may be larger
  at::Tensor buffer{};   // undefined: it is not in the host's memory
  at::Tensor values{};   // the tensor in the buffer
  DiskExtent extent{};   // its place on the disk, once it had to leave
  bool on_disk = false;  // the extent has its values
  bool has_values = true, is_lent = false;
  Moving moving = Moving::No;  // Out: the buffer is free when the transfer is over
  DiskTransfer transfer{};
  uint64_t used = 0;
};

}  // namespace

struct TieredHomeState {
  explicit TieredHomeState(TieredHome::Options options)
      : budget(options.host_bytes),
        ahead_bytes(static_cast<int64_t>(options.ahead * static_cast<double>(options.host_bytes))),
        disk(std::move(options.disk)),
        eviction(options.eviction ? std::move(options.eviction) : make_eviction("auto")),
        buffers(options.host_bytes) {}

  // ---- uses, and what is foretold

  void use(Tenant& tenant) {
    tenant.used = ++clock;
    if (in_step) timeline.used(tenant.number);
  }
  std::optional<size_t> until(const Tenant& tenant) const { return timeline.until(tenant.number); }

  // ---- transfers

  void wait(const DiskTransfer& transfer) {
    const auto start = std::chrono::steady_clock::now();
    const auto add = [&] {
      counts.waited_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    try {
      transfer.wait();
    } catch (...) {
      add();
      throw;
    }
    add();
  }

  /// The transfer of `tenant` is over when this returns; what left has no buffer any more, unless it `stays`.
  void finish(Tenant& tenant, bool stays = false) {
    const Tenant::Moving moved = std::exchange(tenant.moving, Tenant::Moving::No);
    if (moved == Tenant::Moving::No) return;
    const DiskTransfer transfer = std::exchange(tenant.transfer, {});
    if (moved == Tenant::Moving::Out) {
      std::erase(leaving, &tenant);
      leaving_bytes -= tenant.buffer.numel();
    }
    try {
      wait(transfer);
    } catch (...) {
      if (moved == Tenant::Moving::In) drop_buffer(tenant);
      throw;
    }
    if (moved == Tenant::Moving::In) return;
    tenant.on_disk = true;
    if (!stays) drop_buffer(tenant);
  }

  void drop_buffer(Tenant& tenant) {
    tenant.values.reset();
    buffers.give_back(std::exchange(tenant.buffer, {}));
  }

  void give_buffer(Tenant& tenant) {
    tenant.buffer = buffers.take(tenant.bytes);
    const int64_t numel = c10::multiply_integers(tenant.sizes);
    tenant.values = tenant.buffer.narrow(0, 0, numel * static_cast<int64_t>(c10::elementSize(tenant.dtype)))
                        .view(tenant.dtype)
                        .view(tenant.sizes);
  }

  void begin_to_read(Tenant& tenant) {
    give_buffer(tenant);
    tenant.moving = Tenant::Moving::In;
    tenant.transfer = disk->read(tenant.extent, tenant.values);
    ++counts.reads;
    counts.bytes_read += tenant.values.nbytes();
  }

  void evict(Tenant& tenant) {
    ++counts.evictions;
    if (tenant.on_disk) return drop_buffer(tenant);
    if (!tenant.extent) tenant.extent = disk->allocate(static_cast<int64_t>(tenant.values.nbytes()));
    tenant.transfer = disk->write(tenant.extent, tenant.values);
    tenant.moving = Tenant::Moving::Out;
    leaving.push_back(&tenant);
    leaving_bytes += tenant.buffer.numel();
    counts.bytes_written += tenant.values.nbytes();
  }

  // ---- room

  /// What may leave, if there is a disk to go to: in an order that candidates share.
  std::vector<Tenant*> who_may_leave() const {
    std::vector<Tenant*> tenants;
    for (const auto& [number, tenant] : all)
      if (disk && tenant->buffer.defined() && tenant->values.numel() > 0 && !tenant->is_lent &&
          tenant->moving == Tenant::Moving::No)
        tenants.push_back(tenant);
    return tenants;
  }

  /// The one of them that leaves first; null: nobody may.
  Tenant* first_to_leave() const {
    const std::vector<Tenant*> tenants = who_may_leave();
    if (tenants.empty()) return nullptr;
    std::vector<Candidate> candidates;
    for (const Tenant* tenant : tenants) candidates.push_back({tenant->number, until(*tenant), tenant->used});
    return tenants[eviction->choose(candidates)];
  }

  int64_t missing(int64_t bytes) const { return buffers.in_use() + bytes - budget; }

  /// There is room for `bytes` when this returns; or nothing else is there, if more than the budget `may` be taken: by
  /// a tensor that comes from memory, and leaves it as soon as it is written.
  void make_room(int64_t bytes, bool may_exceed = false) {
    end_what_is_over();
    while (missing(bytes) > 0) {
      if (missing(bytes) - leaving_bytes > 0)
        if (Tenant* tenant = first_to_leave()) {
          evict(*tenant);
          continue;
        }
      if (!leaving.empty()) {
        finish(*leaving.front());
        continue;
      }
      const auto arriving = std::find_if(all.begin(), all.end(), [](const auto& entry) {
        return entry.second->moving == Tenant::Moving::In && !entry.second->is_lent;
      });
      if (arriving == all.end() && may_exceed && disk) return;
      require(arriving != all.end(), "memory", "memory.host = \"", print_bytes(budget),
              "\" is too small: ", readable_bytes(buffers.in_use()), disk ? " are in use at once" : " are kept",
              " where ", readable_bytes(bytes), " more are wanted; at least \"", print_bytes(buffers.in_use() + bytes),
              "\" ",
              disk ? "would do here; smaller chunks (parallel.chunk_mib) need less"
                   : "would do so far; name a folder for the rest (memory.disk)");
      finish(*arriving->second);
    }
  }

  void end_what_is_over() {
    while (!leaving.empty() && leaving.front()->transfer.is_over()) finish(*leaving.front());
  }

  /// Reads what is used next, as far as there is room or what has to leave for it is used later. What goes wrong is of
  /// other tensors than the one that is asked for: the next one who asks hears of it.
  void read_ahead() {
    try {
      begin_all_ahead();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }

  void begin_all_ahead() {
    end_what_is_over();
    int64_t seen = 0, wanted = 0;  // bytes of what comes, and of that which has no buffer yet
    bool is_full = false;
    for (size_t steps = 1; seen < ahead_bytes; ++steps) {
      const auto number = timeline.ahead(steps);
      if (!number) return;
      const auto found = all.find(*number);
      if (found == all.end()) continue;  // it ended; another of its number will come
      Tenant& next = *found->second;
      if (next.is_lent) continue;
      seen += next.bytes;
      if (next.buffer.defined()) continue;
      wanted += next.bytes;
      while (missing(wanted) - leaving_bytes > 0) {
        Tenant* leaves = first_to_leave();
        if (!leaves || until(*leaves).value_or(steps + 1) <= steps) return;
        evict(*leaves);
      }
      is_full = is_full || missing(wanted) > 0;  // until what leaves is on the disk
      if (is_full || !next.has_values) continue;
      wanted -= next.bytes;
      begin_to_read(next);
      ++counts.reads_ahead;
    }
  }

  void rethrow() {
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  const int64_t budget, ahead_bytes;
  std::shared_ptr<DiskSpace> disk;
  std::unique_ptr<Eviction> eviction;
  HostBuffers buffers;
  std::map<size_t, Tenant*> all;  // by number
  std::set<size_t> free_numbers;
  Timeline timeline;
  bool in_step = false;
  uint64_t clock = 0;
  std::deque<Tenant*> leaving;  // Moving::Out, oldest first
  int64_t leaving_bytes = 0;
  TieredHome::Counts counts;
  std::exception_ptr failure;  // where nothing could be thrown
  mutable std::mutex mutex;
};

namespace {

class TieredKept final : public Kept {
 public:
  TieredKept(TieredHomeState& home, const at::Tensor& tensor)
      : home_(home),
        tenant_{.number = 0,
                .sizes = tensor.sizes().vec(),
                .dtype = tensor.scalar_type(),
                .bytes = whole_blocks(static_cast<int64_t>(tensor.nbytes()))} {
    const std::lock_guard lock(home_.mutex);
    home_.rethrow();
    home_.make_room(tenant_.bytes, /*may_exceed=*/true);
    fill(tensor);
    // The lowest free number: what comes and goes in every step has the same one each time.
    tenant_.number = home_.free_numbers.empty() ? home_.all.size() : *home_.free_numbers.begin();
    home_.free_numbers.erase(tenant_.number);
    home_.all.emplace(tenant_.number, &tenant_);
    home_.use(tenant_);
    if (home_.missing(0) > 0) home_.make_room(0);
    home_.read_ahead();
  }

  ~TieredKept() override {
    const std::lock_guard lock(home_.mutex);
    leave_memory();
    home_.all.erase(tenant_.number);
    home_.free_numbers.insert(tenant_.number);
  }

  int64_t bytes() const override { return tenant_.bytes; }

  void expect() override {
    attempt([&] {
      // What is foretold comes in its order; this is for the first step.
      if (!tenant_.has_values || tenant_.buffer.defined() || home_.until(tenant_)) return;
      while (home_.missing(tenant_.bytes) - home_.leaving_bytes > 0) {
        Tenant* leaves = home_.first_to_leave();
        if (!leaves) return;
        home_.evict(*leaves);
      }
      home_.end_what_is_over();
      if (home_.missing(tenant_.bytes) > 0) return;
      home_.begin_to_read(tenant_);
      ++home_.counts.reads_ahead;
    });
  }

  at::Tensor bring() override {
    const std::lock_guard lock(home_.mutex);
    home_.rethrow();
    home_.use(tenant_);
    home_.finish(tenant_, /*stays=*/true);
    if (!tenant_.buffer.defined()) {
      home_.make_room(tenant_.bytes);
      home_.begin_to_read(tenant_);
      home_.finish(tenant_);
    }
    tenant_.is_lent = true;
    home_.read_ahead();
    return tenant_.values;
  }

  void put(const at::Tensor&, bool changed) override {
    attempt([&] {
      tenant_.is_lent = false;
      if (changed) tenant_.on_disk = false;
      home_.read_ahead();
    });
  }

  void forget() override {
    const std::lock_guard lock(home_.mutex);
    tenant_.has_values = tenant_.on_disk = false;
    leave_memory();
  }

  void replace(const at::Tensor& tensor) override {
    const std::lock_guard lock(home_.mutex);
    home_.rethrow();
    if (tenant_.buffer.defined())
      home_.finish(tenant_, /*stays=*/true);
    else
      home_.make_room(tenant_.bytes);
    fill(tensor);
    home_.use(tenant_);
    home_.read_ahead();
  }

 private:
  /// There is room, or a buffer.
  void fill(const at::Tensor& tensor) {
    if (!tenant_.buffer.defined()) home_.give_buffer(tenant_);
    tenant_.values.copy_(tensor);
    tenant_.has_values = true, tenant_.on_disk = false;
  }

  void leave_memory() {
    try {
      home_.finish(tenant_, /*stays=*/true);
    } catch (...) {  // of values that nobody wants any more
    }
    if (tenant_.buffer.defined()) home_.drop_buffer(tenant_);
  }

  template <class Body>
  void attempt(const Body& body) {
    const std::lock_guard lock(home_.mutex);
    try {
      body();
    } catch (...) {
      if (!home_.failure) home_.failure = std::current_exception();
    }
  }

  TieredHomeState& home_;
  Tenant tenant_;
};

}  // namespace

TieredHome::TieredHome(Options options) : state_(std::make_unique<TieredHomeState>(std::move(options))) {}
TieredHome::~TieredHome() = default;

std::unique_ptr<Kept> TieredHome::keep(const at::Tensor& tensor) {
  return std::make_unique<TieredKept>(*state_, tensor);
}

void TieredHome::begin_step() {
  const std::lock_guard lock(state_->mutex);
  state_->in_step = true;
}

void TieredHome::end_step() {
  const std::lock_guard lock(state_->mutex);
  state_->in_step = false;
  state_->timeline.end_pass();
}

TieredHome::Counts TieredHome::counts() const {
  const std::lock_guard lock(state_->mutex);
  Counts counts = state_->counts;
  counts.host_bytes = state_->buffers.held();
  counts.peak_host_bytes = state_->buffers.peak();
  for (const auto& [number, tenant] : state_->all)
    if (!tenant->buffer.defined() && tenant->has_values)
      counts.disk_bytes +=
          c10::multiply_integers(tenant->sizes) * static_cast<int64_t>(c10::elementSize(tenant->dtype));
  return counts;
}

}  // namespace colossal::memory
