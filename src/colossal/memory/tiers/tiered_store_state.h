// The state of a TieredStore: its tensors and the functions that move them. This header is only for the files of
// TieredStore.
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
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/memory/timeline.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/tensor/transfers.h"

namespace colossal::memory {

/// A stored tensor. The store's mutex guards its members.
struct TieredTensor {
  enum class Moving { No, In, Out };

  size_t number;
  std::vector<int64_t> sizes;
  at::ScalarType dtype;
  int64_t bytes;         // bytes of its buffer, which count against the budget
  at::Tensor buffer{};   // undefined: the tensor is not in host memory
  at::Tensor values{};   // the tensor in the buffer
  DiskExtent extent{};   // its space on the disk, allocated when it is first written
  bool on_disk = false;  // the extent holds its values
  bool has_values = true, is_borrowed = false;
  bool is_asked = false;       // a call handles the tensor and may wait: no other code moves it
  Moving moving = Moving::No;  // Out: the buffer is freed when the transfer ends
  DiskTransfer transfer{};
  DeviceCopy copy{};  // copies between the buffer and the device
  // announcements of the copy to the buffer, and of the transfer that moves the tensor (tensor/transfers.h)
  tensor::Transfer announced_copy{}, announced_transfer{};
  // TieredStoreState::clock at its last use, ::look at the last read_ahead() that considered it
  uint64_t used = 0, looked_at = 0;
};

/// The caller of a member holds `mutex`. Members that wait for the disk release it while they wait, so that other
/// threads can run: also the thread of this class, which reads tensors ahead into freed buffers. Callers of the store
/// hold `asking` too, so that their calls run one after the other.
struct TieredStoreState {
  explicit TieredStoreState(TieredStore::Options options);
  ~TieredStoreState();

  // ---- uses and predictions

  void use(TieredTensor& stored);
  void end_step();
  void abandon_step();
  void free_numbers_again();
  std::optional<size_t> until(const TieredTensor& stored) const { return timeline.until(stored.number); }

  // ---- transfers

  /// Waits for the transfer of `stored`, if there is one, and ends it. The tensor must be `is_asked`, so its buffer
  /// remains. Errors: as end_transfer().
  void finish(TieredTensor& stored);

  /// Ends the transfer of `stored`, which is over. If the tensor was written to the disk, its buffer is freed unless a
  /// caller asks for the tensor. Errors: see DiskTransfer::wait().
  void end_transfer(TieredTensor& stored);

  /// Waits until `transfer` is over, successful or not.
  void wait_for(DiskTransfer transfer);

  /// Copies `tensor`, on any device, into the buffer of `stored`, which must have one and be `is_asked`. Other threads
  /// may hold the mutex while the host copies.
  void fill(TieredTensor& stored, const at::Tensor& tensor);

  /// Waits until the buffer holds its values and no device reads it.
  void finish_copy(TieredTensor& stored);

  /// Returns the buffer to the pool; the tensor is not in host memory any more.
  void drop_buffer(TieredTensor& stored);

  /// Takes a buffer from the pool, whose values are arbitrary.
  void give_buffer(TieredTensor& stored);

  /// Gives `stored` a buffer and starts to read its values from the disk.
  void begin_to_read(TieredTensor& stored);

  /// Drops the buffer at once if the disk holds the values; otherwise starts to write them (Moving::Out).
  void evict(TieredTensor& stored);

  // ---- room

  /// Updates whether `stored` may be evicted. Code outside of this class calls it after every change of a tensor.
  void settle(const TieredTensor& stored);

  /// Returns the tensor to evict first; null if none may be evicted.
  TieredTensor* first_to_leave();

  int64_t missing(int64_t bytes) const { return buffers.in_use() + bytes - budget; }

  /// Waits until there is room for `bytes`; evicts tensors for it. With a disk and `may_exceed`, it also returns when
  /// no other tensor is left to evict: a tensor that is given from memory may exceed the budget until it is written to
  /// the disk. Errors: ("memory") the budget is too small; the errors of the transfers that it waits for.
  void make_room(int64_t bytes, bool may_exceed = false);

  /// Announces waits for the writes that must end before there is room for `bytes`. On meta they are over at once, so
  /// make_room() does not wait for them.
  void announce_room(int64_t bytes);

  void end_what_is_over();

  /// Starts to read the tensors that are predicted to be used next, up to `ahead_bytes`. To make room it evicts only
  /// tensors that are used later than these. Errors concern other tensors than the one of the current call, so the next
  /// call throws them.
  void read_ahead();

  void begin_all_ahead();

  /// Body of the thread: when an eviction has been written, reads tensors that wait for its room.
  void follow_those_that_leave();

  void rethrow();

  void record(TierEvent::Kind kind, const TieredTensor& stored) {
    if (events) events->push_back({kind, stored.number, stored.bytes});
  }

  const std::string remedy;
  const at::Device device;
  const int64_t budget, ahead_bytes;
  std::shared_ptr<DiskSpace> disk;
  HostBuffers buffers;
  std::optional<c10::Stream> to_host;  // stream for copies from the device to buffers
  std::deque<TieredTensor*> filled;    // tensors that these copies fill, oldest first
  std::vector<TieredTensor*> all;      // tensors by number; null: the tensor was destroyed
  std::set<size_t> free_numbers;
  std::vector<size_t> freed_numbers;  // numbers freed in the current step
  // Resumes, because the first step uses chunks and inputs in another order
  Timeline timeline{Timeline::Resumes::Yes};
  EvictionQueue may_leave;
  bool in_step = false;
  uint64_t clock = 0, look = 0;
  std::deque<TieredTensor*> leaving, arriving;  // tensors with Moving::Out and Moving::In, oldest first
  int loans = 0;                                // tensors that callers copy from after the end of their turn
  std::condition_variable_any loan_ends;
  int64_t asked_bytes = 0;                   // bytes for which make_room() makes room: nothing is read ahead into it
  int64_t leaving_bytes = 0, all_bytes = 0;  // all_bytes: bytes of all tensors, wherever they are
  TieredStore::Counts counts;
  std::optional<std::vector<TierEvent>> events;
  std::exception_ptr failure;  // error that the next call throws, because the call it occurred in could not
  std::mutex asking, mutex;
  std::condition_variable leaves;  // notified if a tensor is being evicted that no call asks for, or on `stopping`
  bool stopping = false;
  std::thread follower;  // runs only with a disk
};

/// The turn of one caller of the store: holds both of its mutexes.
class Turn {
 public:
  explicit Turn(TieredStoreState& state) : state_(state), asking_(state.asking), mutex_(state.mutex) {}
  /// Gives up the turn and runs `body`, so that other callers go on. Then runs `end`, which needs `mutex` alone, also
  /// if `body` throws.
  template <class Body, class End>
  void leave_for(const Body& body, const End& end) {
    ++state_.loans;
    mutex_.unlock();
    asking_.unlock();
    const auto back = c10::make_scope_exit([&] {
      mutex_.lock();
      --state_.loans;
      end();
      state_.loan_ends.notify_all();
    });
    body();
  }

 private:
  TieredStoreState& state_;
  std::unique_lock<std::mutex> asking_, mutex_;
};

/// Marks a tensor as asked for (is_asked) while this object exists.
class Asked {
 public:
  Asked(TieredStoreState& state, TieredTensor& stored) : state_(state), stored_(stored) {
    stored.is_asked = true;
    state.settle(stored);
  }
  ~Asked() {
    stored_.is_asked = false;
    state_.settle(stored_);
    state_.leaves.notify_one();  // the thread can go on if it waited for this tensor
  }
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;

 private:
  TieredStoreState& state_;
  TieredTensor& stored_;
};

}  // namespace colossal::memory
