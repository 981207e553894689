#include "colossal/memory/host_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "colossal/memory/account.h"

namespace colossal::memory::host_memory_test {
namespace {

// The allocator is installed for the process and cannot be removed: other tests of this executable may run before or
// after.
struct HostMemoryCache : testing::Test {
  void SetUp() override { keep_host_memory(); }
};

TEST_F(HostMemoryCache, TakesNothingFromTheSystemInASteadyState) {
  const auto step = [] {
    std::vector<at::Tensor> activations;
    for (int64_t i = 1; i < 20; ++i) activations.push_back(at::ones({i * 100'000}));
    for (const auto& x : activations) ASSERT_EQ(x[0].item<float>(), 1);
  };
  step();
  const auto before = host_memory();
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(host_memory().system_requests, before.system_requests);
  EXPECT_EQ(host_memory().used_bytes, before.used_bytes);
  EXPECT_EQ(host_memory().reserved_bytes, before.reserved_bytes);
}

TEST_F(HostMemoryCache, ReportsToAccounts) {
  const Account account;
  constexpr int64_t kBytes = 3 << 20;
  at::Tensor kept = at::empty({kBytes}, at::kByte);
  {
    const at::Tensor brief = at::empty({kBytes}, at::kByte);
  }
  EXPECT_EQ(account.usage().total, kBytes);
  EXPECT_EQ(account.usage().peak_total, 2 * kBytes);
  kept.reset();
  EXPECT_EQ(account.usage().total, 0);
}

TEST_F(HostMemoryCache, NeverGivesTheSameMemoryTwice) {
  std::mt19937 draw(1);
  std::vector<std::pair<at::Tensor, float>> live;
  for (int i = 0; i < 2000; ++i) {
    if (live.size() > 20 || (!live.empty() && draw() % 2)) {
      const size_t victim = draw() % live.size();
      const auto& [x, value] = live[victim];
      ASSERT_TRUE(x.eq(value).all().item<bool>());
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      const auto value = static_cast<float>(i);
      live.emplace_back(at::full({static_cast<int64_t>(draw() % 300'000) + 1}, value), value);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(live.back().first.data_ptr()) % 64, 0u);
    }
  }
}

TEST_F(HostMemoryCache, ReturnsUnusedSegmentsAtItsLimit) {
  release_host_memory();
  const size_t reserved = host_memory().reserved_bytes, mib = size_t{1} << 20;
  const auto reserved_after = [&] {
    std::vector<at::Tensor> small;
    for (int i = 0; i < 3; ++i) small.push_back(at::empty({int64_t{40} << 20}, at::kByte));
    small.clear();
    const at::Tensor large = at::empty({int64_t{100} << 20}, at::kByte);
    const size_t result = host_memory().reserved_bytes - reserved;
    return result;
  };
  EXPECT_EQ(reserved_after(), 220 * mib);
  release_host_memory();
  limit_host_memory(reserved + 150 * mib);
  EXPECT_EQ(reserved_after(), 100 * mib);
  const at::Tensor live = at::empty({int64_t{200} << 20}, at::kByte);  // live tensors may exceed the limit
  EXPECT_GE(host_memory().reserved_bytes, reserved + 200 * mib);
  limit_host_memory(std::numeric_limits<size_t>::max());
}

TEST_F(HostMemoryCache, ReturnsUnusedSegmentsIfTheSystemHasNoMemory) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr int64_t kMib = 1 << 20;
    release_host_memory();
    std::vector<at::Tensor> parts;
    for (int i = 0; i < 8; ++i) parts.push_back(at::empty({40 * kMib}, at::kByte));
    parts.clear();
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;  // pages of the address space
    const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + 20 * kMib);
    const rlimit limits{limit, limit};
    if (setrlimit(RLIMIT_AS, &limits) != 0) _exit(2);
    try {
      at::empty({200 * kMib}, at::kByte);  // larger than a segment of 40 MiB
    } catch (const std::exception&) {
      _exit(1);
    }
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(HostMemoryCache, MergesFreedBlocks) {
  release_host_memory();
  const auto before = host_memory();
  {
    std::vector<at::Tensor> pieces;
    for (int i = 0; i < 40; ++i) pieces.push_back(at::empty({1'000'000}));
    EXPECT_GE(host_memory().used_bytes, before.used_bytes + 160'000'000);
    for (int i = 0; i < 40; i += 2) pieces[static_cast<size_t>(i)] = at::Tensor();
  }
  EXPECT_EQ(host_memory().used_bytes, before.used_bytes);
  EXPECT_GT(release_host_memory(), 0u);
  EXPECT_EQ(host_memory().reserved_bytes, before.reserved_bytes);
}

TEST_F(HostMemoryCache, ServesManyThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const auto x = at::full({100'000 + 1000 * i}, t, at::kFloat);
        ASSERT_EQ(x[x.numel() - 1].item<float>(), static_cast<float>(t));
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(HostMemoryCache, LeavesSmallTensorsToTheLibrary) {
  const auto before = host_memory().used_bytes;
  const auto x = at::ones({16});
  EXPECT_EQ(host_memory().used_bytes, before);
}

TEST_F(HostMemoryCache, WorksInAChildOfAProcessWhoseThreadsAllocate) {
  constexpr size_t kBytes = 1 << 20;
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!ends.load()) allocator.allocate(kBytes);
    });
  int failed = 0;
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // SIGALRM ends a child that waits for a thread which it does not have
      const c10::DataPtr data = allocator.allocate(kBytes);
      std::memset(data.get(), 1, kBytes);
      _exit(0);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    failed += status != 0;
    if (failed > 0) break;
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace colossal::memory::host_memory_test
