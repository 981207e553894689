// What a TieredHome knows of its tensors, and what moves them. For its own files.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "colossal/memory/stream_aside.h"
#include "colossal/memory/tiers/eviction_queue.h"
#include "colossal/memory/tiers/host_buffers.h"
#include "colossal/memory/tiers/tiered_home.h"
#include "colossal/memory/timeline.h"
#include "colossal/tensor/elsewhere.h"

namespace colossal::memory {

/// A tensor of the home. Its members belong to the home's mutex.
struct Tenant {
  enum class Moving { No, In, Out };

  size_t number;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  int64_t bytes;         // that it takes of a budget: of its buffer
  at::Tensor buffer{};   // undefined: it is not in the host's memory
  at::Tensor values{};   // the tensor in the buffer
  DiskExtent extent{};   // its place on the disk, once it had to leave
  bool on_disk = false;  // the extent has its values
  bool has_values = true, is_lent = false;
  bool is_asked = false;       // somebody's call is about it, who waits perhaps: nobody else moves it
  Moving moving = Moving::No;  // Out: the buffer is free when the transfer is over
  DiskTransfer transfer{};
  DeviceCopy copy{};                 // between the buffer and the device
  uint64_t used = 0, looked_at = 0;  // by TieredHomeState::clock and ::look
};

/// Whoever calls a member has `mutex`, which those that wait for the disk leave to others meanwhile: to the thread of
/// this, which reads ahead into what has left. `asking` is of those that call the home, one after the other.
struct TieredHomeState {
  explicit TieredHomeState(TieredHome::Options options);
  ~TieredHomeState();

  // ---- uses, and what is foretold

  void use(Tenant& tenant);
  void end_step();
  std::optional<size_t> until(const Tenant& tenant) const { return timeline.until(tenant.number); }

  // ---- transfers

  /// The transfer of `tenant`, which is asked for, is over when this returns, and its buffer there. Waits.
  void finish(Tenant& tenant);

  /// Ends the transfer of `tenant`, which is over. If the tenant was written to the disk, its buffer is freed unless a
  /// caller asks for the tenant. Errors: those of the disk.
  void end_transfer(Tenant& tenant);

  /// Returns when `transfer` is over, however. Waits.
  void wait_for(DiskTransfer transfer);

  /// Its values, from whichever device, into its buffer, which it has; it is asked for. Others may have the mutex while
  /// the host copies.
  void fill(Tenant& tenant, const at::Tensor& tensor);

  /// The buffer has the values, and no device reads it, when this returns.
  void finish_copy(Tenant& tenant);

  void drop_buffer(Tenant& tenant);

  void give_buffer(Tenant& tenant);

  void begin_to_read(Tenant& tenant);

  void evict(Tenant& tenant);

  // ---- room

  /// Behind every change of a tenant that is not made by a member of this: it may leave now, or not any more.
  void settle(const Tenant& tenant);

  /// The one that leaves first; null: nobody may.
  Tenant* first_to_leave();

  int64_t missing(int64_t bytes) const { return buffers.in_use() + bytes - budget; }

  /// There is room for `bytes` when this returns; or nothing else is there, if more than the budget `may` be taken: by
  /// a tensor that comes from memory, and leaves it as soon as it is written. Waits.
  void make_room(int64_t bytes, bool may_exceed = false);

  void end_what_is_over();

  /// Reads what is used next, as far as there is room or what has to leave for it is used later. What goes wrong is of
  /// other tensors than the one that is asked for: the next one who asks hears of it.
  void read_ahead();

  void begin_all_ahead();

  /// What the thread does: whenever something has left, what was to be read into its place is.
  void follow_those_that_leave();

  void rethrow();

  void record(TierEvent::Kind kind, const Tenant& tenant) {
    if (events) events->push_back({kind, tenant.number, tenant.bytes});
  }

  const std::string remedy;
  const at::Device device;
  const int64_t budget, ahead_bytes;
  std::shared_ptr<DiskSpace> disk;
  HostBuffers buffers;
  std::optional<c10::Stream> to_host;  // for copies of a device to buffers
  std::deque<Tenant*> filled;          // by these copies, oldest first
  std::vector<Tenant*> all;            // by number; null: it ended
  std::set<size_t> free_numbers;
  std::vector<size_t> freed_numbers;          // in this step
  Timeline timeline{Timeline::Resumes::Yes};  // chunks and inputs come otherwise in the first step
  EvictionQueue may_leave;
  bool in_step = false;
  uint64_t clock = 0, look = 0;
  std::deque<Tenant*> leaving, arriving;  // Moving::Out and In, oldest first
  int loans = 0;                          // tensors that are copied from, by those whose turn is over
  std::condition_variable_any loan_ends;
  int64_t asked_bytes = 0;                   // for which somebody makes room: nothing is read ahead into it
  int64_t leaving_bytes = 0, all_bytes = 0;  // all_bytes: of all tensors, wherever they are
  TieredHome::Counts counts;
  std::optional<std::vector<TierEvent>> events;
  std::exception_ptr failure;  // where nothing could be thrown
  std::mutex asking, mutex;
  std::condition_variable leaves;  // something does that nobody asks for, or `stopping`
  bool stopping = false;
  std::thread follower;  // none without a disk
};

/// The turn of one caller of the home: holds both of its mutexes.
class Turn {
 public:
  explicit Turn(TieredHomeState& home) : home_(home), asking_(home.asking), mutex_(home.mutex) {}
  /// `body` runs when it is others' turn, and `end`, which needs no turn, behind it, also where that throws.
  template <class Body, class End>
  void leave_for(const Body& body, const End& end) {
    ++home_.loans;
    mutex_.unlock();
    asking_.unlock();
    const auto back = c10::make_scope_exit([&] {
      mutex_.lock();
      --home_.loans;
      end();
      home_.loan_ends.notify_all();
    });
    body();
  }

 private:
  TieredHomeState& home_;
  std::unique_lock<std::mutex> asking_, mutex_;
};

/// As long as it lives its tenant is asked for.
class Asked {
 public:
  Asked(TieredHomeState& home, Tenant& tenant) : home_(home), tenant_(tenant) {
    tenant.is_asked = true;
    home.settle(tenant);
  }
  ~Asked() {
    tenant_.is_asked = false;
    home_.settle(tenant_);
    home_.leaves.notify_one();  // of those behind it
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

 private:
  TieredHomeState& home_;
  Tenant& tenant_;
};

}  // namespace colossal::memory
