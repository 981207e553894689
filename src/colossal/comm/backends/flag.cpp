#include "colossal/comm/backends/flag.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <thread>

namespace colossal::comm {
namespace {

// Not FUTEX_PRIVATE: the word may be shared between processes.
void futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* limit) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, limit, nullptr, 0);
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

Patience Patience::for_ranks(int ranks_on_host) {
  // The affinity mask of a bound rank is its share; unbound ranks see the whole machine. In both cases a rank has its
  // own core.
  const bool bound = available_cores() < static_cast<int>(std::thread::hardware_concurrency());
  const bool core_each = bound || available_cores() >= ranks_on_host;
  return {core_each ? 4000 : 20};
}

void Flag::store(uint32_t value) {
  // Both sides are sequentially consistent: either the sleeper sees the value or the writer sees the sleeper.
  value_.store(value, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

void Flag::ring() {
  value_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) wake();
}

void Flag::wake() { futex(&value_, FUTEX_WAKE, INT_MAX, nullptr); }

void Flag::sleep(uint32_t seen, std::chrono::milliseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec span{seconds.count(), std::chrono::nanoseconds(limit - seconds).count()};
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (value_.load(std::memory_order_seq_cst) == seen) futex(&value_, FUTEX_WAIT, seen, &span);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace colossal::comm
