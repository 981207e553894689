// The meeting point of a group in a segment: one slot per rank, a barrier between steps, and the ways the group can
// end.
//
//   segment = | end: aborted, reason | slot headers, one a rank | slot data, one a rank | channels of send and recv |
//
// Ranks advance in steps. In a step each rank writes into its own slot, meets the others, and then reads their slots.
// Slots are doubled and the steps alternate between the halves. A rank that writes for step k+2 knows that all ranks
// have met at k+1, so they have finished reading k. One meeting per step is therefore enough.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "colossal/comm/backends/segment.h"
#include "colossal/comm/call.h"

namespace colossal::comm {

/// The number of spins before a waiter sleeps. With fewer cores than ranks, spinning only delays the awaited rank.
///
/// A waiter never yields: that hands its core to whatever else is ready, for milliseconds if this is another program,
/// and the awaited rank may be neither. The kernel prefers a thread that wakes.
struct Patience {
  int spins;
  static Patience for_ranks(int ranks_on_host);
};

/// A counter that other threads or processes can wait for. It must be in zeroed shared memory. store() is for one
/// writer, ring() for many. Any number of waiters may wait, in any process.
class Flag {
 public:
  uint32_t load() const { return value_.load(std::memory_order_acquire); }
  /// Publishes everything written before, and wakes the sleepers. Makes no system call if there is no sleeper.
  void store(uint32_t value);
  /// Adds one, for flags that only say "something changed".
  void ring();
  /// Wakes the sleepers without a change, so that they check their conditions.
  void wake();
  /// Sleeps until the value is no longer `seen`, wake() is called, or `limit` passes.
  void sleep(uint32_t seen, std::chrono::milliseconds limit);

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "flags are shared between processes");

/// Waits until `ready()` returns true. Before each sleep on `flag`, of at most 100 ms, it calls `check()`, which may
/// throw.
template <class Ready, class Check>
void wait_for(Flag& flag, const Patience& patience, const Ready& ready, const Check& check);

/// Tells the processor that this is a spin loop.
inline void relax() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

template <class Ready, class Check>
void wait_for(Flag& flag, const Patience& patience, const Ready& ready, const Check& check) {
  for (int i = 0; i < patience.spins; ++i) {
    if (ready()) return;
    relax();
  }
  while (true) {
    const uint32_t seen = flag.load();
    if (ready()) return;
    check();
    flag.sleep(seen, std::chrono::milliseconds(100));
  }
}

constexpr int kMaxSharedRanks = 127;  // limit for one group on one host

/// The properties of a call that must be equal on all ranks, which compare them in every step. 16 bytes, so that two
/// of them share a cache line with the flag.
struct Signature {
  uint64_t bytes = 0;  ///< bytes of the tensor whose size must be equal on every rank; 0 for all_to_all
  uint32_t number = 0;
  int8_t root = 0;
  Collective collective = Collective::Barrier;
  int8_t dtype = 0;
  uint8_t reduce = 0;
  bool operator==(const Signature&) const = default;
};

class Slots {
 public:
  /// Returns the bytes of a segment for `size` ranks.
  static size_t segment_bytes(int size);

  /// `segment` must be zeroed when the first rank is constructed. `ranks_on_host` determines how long waiters spin.
  Slots(std::shared_ptr<Segment> segment, std::string group, int rank, int size, int ranks_on_host);
  /// Informs the peers that this rank has left.
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Patience& patience() const { return patience_; }

  /// Returns the number of bytes that a rank can show its peers in one step.
  int64_t capacity() const { return capacity_; }
  /// Returns the `capacity()` bytes of this step: the owner writes them before meet(), the peers read them after it.
  std::byte* input(int rank) const { return half(rank, step_ + 1); }
  std::byte* shown(int rank) const { return half(rank, step_); }
  /// Returns a second, smaller area (capacity / size rounded up): the owner writes it after meet(), the peers read it
  /// after the next meet().
  std::byte* result(int rank) const { return half(rank, step_) + capacity_; }
  std::byte* last_result(int rank) const { return half(rank, step_ - 1) + capacity_; }

  /// Publishes input(rank()) and waits until all peers have done the same; then shown() and last_result() may be read.
  /// Errors: throws Error("comm", ...) if a peer made another call, has left or died, or if the group was aborted.
  void meet(const Signature& call);

  /// Ends the group for all ranks; the first reason is kept.
  void abort(const std::string& reason) noexcept;
  /// Throws if the group was aborted, or if `peer` has left or died. For this rank itself, checks only for an abort.
  void check(int peer) const;
  bool left(int peer) const;
  bool died(int peer) const;

  /// Returns the part of the segment after the slots.
  std::byte* channels() const;
  static size_t channel_bytes(int size);  ///< bytes of one ordered pair of ranks, control words included

 private:
  struct Header;
  struct End;
  Header& header(int rank) const;
  End& end() const;
  std::byte* half(int rank, uint32_t step) const;
  void compare();
  [[noreturn]] void throw_reason() const;

  std::shared_ptr<Segment> segment_;
  const std::string group_;
  const int rank_, size_;
  const Patience patience_;
  int64_t capacity_;
  uint32_t step_ = 0;
};

/// Returns a description of the call: "all_reduce(sum) of 4096 bytes of Float".
std::string describe(const Signature& call);

}  // namespace colossal::comm
