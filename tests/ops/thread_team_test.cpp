#include "colossal/ops/thread_team.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "colossal/ops/cpu.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

/// Sets the number of threads of the calling thread during its lifetime.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

void expect_once_each(int64_t items) {
  std::vector<std::atomic<int>> calls(static_cast<size_t>(items));
  ThreadTeam::of_this_thread().run(items, [&](int64_t index) {
    // The items differ in length, so that threads finish at every point of the loop.
    for (std::atomic<int> turn{0}; turn < 50 * (index % 4); ++turn) {
    }
    ++calls[static_cast<size_t>(index)];
  });
  for (int64_t i = 0; i < items; ++i) ASSERT_EQ(calls[static_cast<size_t>(i)], 1) << "item " << i << " of " << items;
}

TEST(ThreadTeam, CallsEachItemOnceWithAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 7, 2}) {
    const Threads those(threads);
    for (int round = 0; round < 2000; ++round) expect_once_each(round % 23);
  }
}

TEST(ThreadTeam, CallsEachItemOnceWhenItsThreadsSleep) {
  const Threads two(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    expect_once_each(50);
  }
}

TEST(ThreadTeam, UsesAllThreads) {
  for (const int threads : {1, 3}) {
    const Threads those(threads);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    std::atomic<int> here{0};
    // An item ends when every thread has one, or after ten seconds, so that a bug is no deadlock.
    ThreadTeam::of_this_thread().run(threads, [&](int64_t) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      ++here;
      while (here < threads && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(seen.size(), static_cast<size_t>(threads));
  }
}

TEST(ThreadTeam, RunsBodiesWithTheInstructionSetOfTheCaller) {
  const Threads three(3);
  for (const InstructionSet set : runnable_instruction_sets()) {
    const InstructionSetScope chosen(set);
    std::atomic<int> others{0};
    ThreadTeam::of_this_thread().run(200, [&](int64_t) {
      for (std::atomic<int> turn{0}; turn < 100; ++turn) {
      }
      others += instruction_set() != set;
    });
    EXPECT_EQ(others, 0) << name(set);
  }
}

TEST(ThreadTeam, RunsSeriallyInsideALoop) {
  const Threads two(2);
  std::atomic<int> elsewhere{0}, calls{0};
  const auto inner = [&](int64_t) {
    const auto thread = std::this_thread::get_id();
    ThreadTeam::of_this_thread().run(5, [&](int64_t) { ++calls, elsewhere += std::this_thread::get_id() != thread; });
  };
  ThreadTeam::of_this_thread().run(40, inner);
  parallel_for(0, 40, 1, [&](int64_t from, int64_t to) {
    for (; from < to; ++from) inner(from);
  });
  EXPECT_EQ(calls, 400);
  EXPECT_EQ(elsewhere, 0);
}

TEST(ThreadTeam, RethrowsAndStaysUsable) {
  const Threads two(2);
  for (int round = 0; round < 200; ++round) {
    EXPECT_THROW(ThreadTeam::of_this_thread().run(
                     9, [&](int64_t index) { index == round % 9 ? throw std::runtime_error("item") : void(); }),
                 std::runtime_error);
    expect_once_each(9);
  }
}

TEST(ThreadTeam, SeparatesTeamsOfCallers) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([] {
      const Threads two(2);
      for (int round = 0; round < 500; ++round) expect_once_each(17);
    });
  for (std::thread& caller : callers) caller.join();
}

TEST(ThreadTeam, SurvivesFreedStreamedMemory) {
  const Threads two(2);
  for (int round = 0; round < 100; ++round) {
    // The memory of the second loop of the last round is freed, and its addresses may belong to other memory now.
    std::vector<char> first(1000), second(size_t{3} << 20);
    for (const std::vector<char>& of : {std::cref(first), std::cref(second)}) {
      std::atomic<int> calls{0};
      ThreadTeam::of_this_thread().run(10, [&](int64_t) { ++calls; }, {{of.data(), static_cast<int64_t>(of.size())}});
      EXPECT_EQ(calls, 10);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

}  // namespace
}  // namespace colossal::ops
