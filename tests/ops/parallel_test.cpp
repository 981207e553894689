#include "colossal/ops/parallel.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <barrier>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "colossal/ops/thread_team.h"
#include "ops/compare.h"

namespace colossal::ops::parallel_test {
namespace {

struct ThreadCount {
  int before = at::get_num_threads();
  explicit ThreadCount(int n) { at::set_num_threads(n); }
  ~ThreadCount() { at::set_num_threads(before); }
};

TEST(ParallelFor, VisitsEveryItemOnce) {
  for (const int threads : {1, 2, 5}) {
    const ThreadCount scope(threads);
    for (const int64_t items : {0, 1, 7, 1000})
      for (const int64_t grain : {0, 1, 3, 10000}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(items));
        std::atomic<int64_t> chunks{0};
        parallel_chunks_for(0, items, grain, [&](int64_t, int64_t from, int64_t to) {
          ++chunks;
          for (int64_t i = from; i < to; ++i) ++visits[static_cast<size_t>(i)];
        });
        for (const auto& count : visits) EXPECT_EQ(count, 1);
        EXPECT_EQ(chunks, parallel_chunks(items, grain));
      }
  }
}

TEST(ParallelFor, VisitsEveryItemOnceOnATeam) {
  const ThreadCount scope(3);
  const TeamLoops loops;
  for (const int64_t items : {0, 1, 7, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(items));
    parallel_chunks_for(0, items, 2, [&](int64_t, int64_t from, int64_t to) {
      if (items > 2) EXPECT_EQ(parallel_chunks(100, 1), 1) << "serial inside a loop of several chunks";
      parallel_for(from, to, 1, [&](int64_t first, int64_t end) {
        for (int64_t i = first; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
    });
    for (const auto& count : visits) EXPECT_EQ(count, 1);
  }
  EXPECT_THROW(parallel_for(0, 100, 1, [](int64_t, int64_t) { throw std::runtime_error("stop"); }), std::runtime_error);
}

/// Returns the threads of a loop of two items, each of which waits for the other one.
template <class Loop>
std::set<std::thread::id> threads_of(const Loop& loop) {
  std::barrier both(2);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  loop([&] {
    both.arrive_and_wait();
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  return ids;
}

TEST(ParallelFor, SharesTheThreadsOfTheTeamInItsScope) {
  const ThreadCount scope(2);
  const auto team = threads_of([](const auto& wait) { ThreadTeam::of_this_thread().run(2, [&](int64_t) { wait(); }); });
  const auto loop = [](const auto& wait) { parallel_for(0, 2, 1, [&](int64_t, int64_t) { wait(); }); };
  {
    const TeamLoops loops;
    EXPECT_EQ(threads_of(loop), team);
  }
  EXPECT_NE(threads_of(loop), team) << "the scope has ended";
}

TEST(ParallelFor, UsesSeveralThreads) {
  const ThreadCount scope(3);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  parallel_for(0, 3, 1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 3u);  // at::parallel_for would use one thread here, see the header
}

TEST(ParallelFor, RunsSeriallyInsideAnotherLoop) {
  const ThreadCount scope(2);
  parallel_for(0, 2, 1, [](int64_t, int64_t) { EXPECT_EQ(parallel_chunks(100, 1), 1); });
}

TEST(ParallelFor, RethrowsExceptions) {
  const ThreadCount scope(2);
  EXPECT_THROW(parallel_for(0, 10, 1,
                            [](int64_t from, int64_t) {
                              if (from > 0) throw std::runtime_error("late");
                            }),
               std::runtime_error);
}

// A new thread begins with the best set, so the loop has to pass the caller's on.
TEST(ParallelFor, RunsBodiesWithTheInstructionSetOfTheCaller) {
  const ThreadCount scope(3);
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope chosen(set);
    parallel_for(0, 3, 1, [&](int64_t, int64_t) { EXPECT_EQ(instruction_set(), set); });
  }
  parallel_for(0, 3, 1, [](int64_t, int64_t) { EXPECT_EQ(instruction_set(), best_instruction_set()); });
}

}  // namespace
}  // namespace colossal::ops::parallel_test
