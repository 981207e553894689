#include "colossal/ops/thread_team.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/cpu.h"

namespace colossal::ops {
namespace {

constexpr int64_t kFetched = int64_t{1} << 20;  // bytes, about a core's private cache
constexpr int64_t kLine = 64, kLinesAtOnce = 32;
constexpr int kTurns = 8000;              // spins before a thread sleeps; small models take less between products
constexpr size_t kMaxRemembered = 16384;  // pieces: more than the matrices of most models
constexpr size_t kMaxPieces = 16;         // pieces of one prefetch: more than the experts of most tokens

thread_local bool inside_team = false;
thread_local bool team_loops = false;

void rest() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

struct ThreadTeam::Shared {
  // Items that no thread has taken: [first, end) in the upper and lower half. The calling thread takes from the front.
  // The others take from the back, because they have prefetched memory there. A thread reads `body` after it takes an
  // item. This is safe: the calling thread changes `body` only when all items are done, so the item and the body belong
  // to the same loop.
  std::atomic<uint64_t> left{0};
  std::atomic<int64_t> done{0};
  const std::function<void(int64_t)>* body = nullptr;
  InstructionSet set = InstructionSet::Portable;  // of the calling thread; read and written as `body` is
  std::atomic<uint32_t> loops{0};                 // number of loops started; sleeping threads wait on it
  std::atomic<bool> ending{false};
  // These pieces are the memory that the next loop streams. A thread may read pieces of two loops at once. It then
  // prefetches memory that no loop needs, which does no harm.
  struct Piece {
    std::atomic<const char*> begin{nullptr};
    std::atomic<int64_t> bytes{0};
  };
  std::array<Piece, kMaxPieces> pieces;
  std::atomic<size_t> piece_count{0};
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error;
  // Used by the calling thread only.
  std::unordered_map<const char*, Streamed> behind;
  std::vector<Streamed> last;
  std::vector<std::thread> threads;

  bool take(bool from_front) {
    uint64_t range = left.load(std::memory_order_acquire);
    for (;;) {
      const uint64_t first = range >> 32, end = range & 0xFFFFFFFFu;
      if (first >= end) return false;
      const uint64_t rest_of_it = from_front ? (first + 1) << 32 | end : first << 32 | (end - 1);
      if (!left.compare_exchange_weak(range, rest_of_it, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      try {
        const InstructionSetScope scope(set);
        (*body)(static_cast<int64_t>(from_front ? first : end - 1));
      } catch (...) {
        if (!failed.test_and_set()) error = std::current_exception();
      }
      done.fetch_add(1, std::memory_order_release);
      return true;
    }
  }

  // Prefetches the end of the next loop's memory, a share per thread, until that loop starts.
  void fetch(int64_t share, uint32_t loop) const {
    int64_t before = share * kFetched, left = kFetched;  // bytes of other threads behind this one's share, and of it
    for (size_t i = piece_count.load(std::memory_order_relaxed); i-- > 0 && left > 0;) {
      const char* begin = pieces[i].begin.load(std::memory_order_relaxed);
      const int64_t bytes = pieces[i].bytes.load(std::memory_order_relaxed), end = bytes - std::min(bytes, before);
      before -= bytes - end;
      const int64_t first = std::max<int64_t>(0, end - left);
      left -= end - first;
      for (int64_t at = end; at > first; at -= kLinesAtOnce * kLine) {
        if (loops.load(std::memory_order_relaxed) != loop) return;
        for (int64_t line = 1; line <= kLinesAtOnce; ++line) __builtin_prefetch(begin + at - line * kLine, 0, 2);
      }
    }
  }

  void work(int64_t share) {
    inside_team = true;
    while (!ending.load(std::memory_order_acquire)) {
      const uint32_t loop = loops.load(std::memory_order_acquire);
      while (take(false)) {
      }
      fetch(share, loop);
      for (int turn = 0; turn < kTurns && loops.load(std::memory_order_relaxed) == loop; ++turn) rest();
      loops.wait(loop, std::memory_order_acquire);
    }
  }

  // Says what idle threads prefetch.
  void hint(const std::vector<Streamed>& next) {
    const size_t count = std::min(next.size(), kMaxPieces);
    for (size_t i = 0; i < count; ++i) {
      pieces[i].begin.store(next[i].begin, std::memory_order_relaxed);
      pieces[i].bytes.store(next[i].bytes, std::memory_order_relaxed);
    }
    piece_count.store(count, std::memory_order_relaxed);  // the start of the loop publishes it
  }

  // Remembers that these pieces follow those of the last loop: each behind its counterpart, or one matrix behind all
  // experts of a token. Which experts follow one matrix is different for each token.
  void remember(const std::vector<Streamed>& streamed) {
    if (behind.size() > kMaxRemembered) behind.clear();
    if (streamed.size() <= last.size())
      for (size_t i = 0; i < last.size(); ++i) behind[last[i].begin] = streamed[std::min(i, streamed.size() - 1)];
    last = streamed;
  }

  std::vector<Streamed> behind_all(const std::vector<Streamed>& streamed) const {
    std::vector<Streamed> next;
    for (const Streamed& piece : streamed)
      if (const auto found = behind.find(piece.begin); found != behind.end())
        if (next.empty() || next.back() != found->second) next.push_back(found->second);
    return next;
  }

  void wake() {
    loops.fetch_add(1, std::memory_order_release);
    loops.notify_all();
  }
};

ThreadTeam::ThreadTeam(int threads) : wanted_(threads), shared_(std::make_unique<Shared>()) {
  shared_->threads.reserve(static_cast<size_t>(threads));
  try {
    for (int share = 0; share < threads - 1; ++share)
      shared_->threads.emplace_back([shared = shared_.get(), share] { shared->work(share); });
  } catch (const std::system_error&) {
    // The system cannot start more threads, so the started ones do the work.
  }
}

ThreadTeam::~ThreadTeam() {
  shared_->ending.store(true, std::memory_order_release);
  shared_->wake();
  for (std::thread& thread : shared_->threads) thread.join();
}

ThreadTeam& ThreadTeam::of_this_thread() {
  thread_local std::unique_ptr<ThreadTeam> team;
  const bool inside = at::in_parallel_region() || inside_team;
  const int threads = inside ? 1 : at::get_num_threads();
  if (!team || (!inside && team->wanted_ != threads)) team.reset(new ThreadTeam(threads));
  return *team;
}

bool ThreadTeam::is_inside() { return inside_team; }

void ThreadTeam::run(int64_t items, const std::function<void(int64_t)>& body, const std::vector<Streamed>& streamed) {
  Shared& shared = *shared_;
  if (shared.threads.empty() || inside_team || at::in_parallel_region() || items <= 1) {
    for (int64_t index = 0; index < items; ++index) body(index);
    return;
  }
  require(items <= int64_t{0xFFFFFFFF}, "threads", "a loop has at most 2^32 - 1 items: got ", items);
  if (!streamed.empty()) {
    shared.remember(streamed);
    shared.hint(shared.behind_all(streamed));
  }
  shared.body = &body;
  shared.set = instruction_set();
  shared.done.store(0, std::memory_order_relaxed);
  shared.left.store(static_cast<uint64_t>(items), std::memory_order_release);
  shared.wake();
  inside_team = true;
  while (shared.take(true)) {
  }
  inside_team = false;
  for (int turn = 0; shared.done.load(std::memory_order_acquire) < items; ++turn)
    turn < kTurns ? rest() : std::this_thread::yield();
  if (shared.failed.test()) {
    shared.failed.clear();
    std::rethrow_exception(std::exchange(shared.error, nullptr));
  }
}

TeamLoops::TeamLoops() : previous_(std::exchange(team_loops, true)) {}
TeamLoops::~TeamLoops() { team_loops = previous_; }
bool TeamLoops::are_set() { return team_loops; }

}  // namespace colossal::ops
