// A counter in shared memory that other threads or processes can wait for.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>

namespace colossal::comm {

/// The number of spins before a waiter sleeps. With fewer cores than ranks, spinning only delays the awaited rank.
///
/// A waiter never yields: that hands its core to whatever else is ready, for milliseconds if this is another program,
/// and the awaited rank may be neither. The kernel prefers a thread that wakes.
struct Patience {
  int spins;
  static Patience for_ranks(int ranks_on_host);
};

/// A counter that must be in zeroed shared memory. store() is for one writer, ring() for many. Any number of waiters
/// may wait, in any process.
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

}  // namespace colossal::comm
