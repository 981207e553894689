// Accounts: which bytes are counted by kind, when they stop counting, and for which threads.
#include "colossal/memory/account.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "support/thrown_message.h"

namespace colossal::memory::account_test {
namespace {

constexpr int64_t kBytes = 1 << 20;
at::Tensor block() { return at::empty({kBytes}, at::kByte); }

/// The first account of the process, opened before the first test while there is one thread.
class FirstAccount : public testing::Environment {
  void SetUp() override {
    EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator()) << "linking the library must change nothing";
    const at::Tensor before = block();
    const Account account;
    const at::Tensor x = block();
    EXPECT_EQ(account.usage().total, kBytes) << "it must call track_host_memory()";
  }
};

[[maybe_unused]] const testing::Environment* const first_account =
    testing::AddGlobalTestEnvironment(new FirstAccount);  // owned by googletest

TEST(TrackHostMemory, ExchangesAllocatorsOnce) {
  track_host_memory();
  const c10::Allocator* const host = c10::GetCPUAllocator();
  const c10::Allocator* const meta = c10::GetAllocator(c10::DeviceType::Meta);
  track_host_memory();
  EXPECT_EQ(c10::GetCPUAllocator(), host);
  EXPECT_EQ(c10::GetAllocator(c10::DeviceType::Meta), meta);
}

TEST(Account, CountsAKindUntilItsTensorsAreGone) {
  const Account account;
  at::Tensor state, gradient;
  {
    const KindScope outer(Kind::States);
    state = block();
    {
      const KindScope inner(Kind::Gradients);
      gradient = block();
    }
    const at::Tensor brief = block();
  }
  EXPECT_EQ(account.usage().of(Kind::States), kBytes);
  EXPECT_EQ(account.usage().peak_of(Kind::States), 2 * kBytes);
  EXPECT_EQ(account.usage().of(Kind::Gradients), kBytes);
  state.reset();  // freed in no scope: it keeps the kind with which it was allocated
  EXPECT_EQ(account.usage().of(Kind::States), 0);
  const at::Tensor other = block();
  EXPECT_EQ(account.usage().of(Kind::Buffers), kBytes);
  EXPECT_EQ(account.usage().total, 2 * kBytes);
  EXPECT_EQ(account.usage().peak_total, 3 * kBytes);
}

TEST(Account, ResetsPeaks) {
  Account account;
  at::Tensor kept = block();
  {
    const at::Tensor brief = block();
  }
  EXPECT_EQ(account.usage().peak_total, 2 * kBytes);
  account.reset_peaks();
  EXPECT_EQ(account.usage().peak_total, kBytes);
  EXPECT_EQ(account.usage().peak_of(Kind::Buffers), kBytes);
}

TEST(Account, RecordsMemoryOverTime) {
  int64_t now = 0;
  Account account(Counted::Memory, [&] { return now; });
  at::Tensor kept = block();
  account.reset_peaks();
  account.begin_curve();
  now = 3;
  {
    const KindScope kind(Kind::Activations);
    const at::Tensor brief = block(), other = block();
  }
  now = 10;
  kept.reset();
  now = 12;
  const std::vector<Account::Point> curve = account.end_curve();
  const auto bytes = [&](size_t i, Kind kind) { return curve.at(i).live[static_cast<size_t>(kind)]; };
  std::vector<int64_t> moments;
  for (const Account::Point& point : curve) moments.push_back(point.at);
  // 4 and 11: what remains after the last change, until the next one.
  ASSERT_EQ(moments, (std::vector<int64_t>{0, 1, 3, 4, 10, 11, 12}));
  EXPECT_EQ(bytes(0, Kind::Buffers), kBytes);
  EXPECT_EQ(bytes(2, Kind::Buffers), kBytes);
  EXPECT_EQ(bytes(2, Kind::Activations), 2 * kBytes);
  EXPECT_EQ(bytes(3, Kind::Activations), 0);
  EXPECT_EQ(bytes(4, Kind::Buffers), kBytes) << "the most of this moment is before the free";
  EXPECT_EQ(bytes(5, Kind::Buffers), 0);
  EXPECT_EQ(account.usage().peak_device, 3 * kBytes);
}

TEST(Account, NeedsTheMomentForACurve) {
  Account account;
  EXPECT_NE(test::thrown_message([&] { account.begin_curve(); }).find("knows the moment"), std::string::npos);
  EXPECT_TRUE(account.end_curve().empty());
}

TEST(Account, IgnoresEarlierTensorsAndOtherThreads) {
  at::Tensor before = block();
  const Account account;
  at::Tensor elsewhere;
  std::thread([&] { elsewhere = block(); }).join();
  before.reset();
  elsewhere.reset();
  EXPECT_EQ(account.usage().total, 0);
}

at::Tensor shape() { return at::empty({kBytes}, at::device(at::kMeta).dtype(at::kByte)); }

TEST(Account, CountsShapesOnlyIfAsked) {
  const Account memory;
  EXPECT_FALSE(are_shapes_counted());
  at::Tensor before = shape();
  EXPECT_EQ(memory.usage().total, 0);
  const Account shapes(Counted::Shapes);
  EXPECT_TRUE(are_shapes_counted());
  const KindScope kind(Kind::Activations);
  at::Tensor x = shape();
  EXPECT_EQ(x.mutable_data_ptr(), nullptr);
  const at::Tensor on_host = block(), view = x.narrow(0, 0, 1), y = x.to(at::kFloat);
  EXPECT_EQ(shapes.usage().of(Kind::Activations), 5 * kBytes) << "1 byte and 4 bytes per element, no view";
  EXPECT_EQ(memory.usage().total, kBytes) << "the tensor on the host";
  before.reset();
  x.reset();
  EXPECT_EQ(shapes.usage().of(Kind::Activations), 5 * kBytes) << "the view keeps the storage";
  const Account both(Counted::MemoryAndShapes);
  const at::Tensor one = shape(), other = block();
  EXPECT_EQ(both.usage().total, 2 * kBytes);
  EXPECT_EQ(shapes.usage().total, 6 * kBytes);
}

// Each thread is a rank of its own, with tensors of its own size.
TEST(Account, CountsTheShapesOfItsOwnThread) {
  std::array<int64_t, 4> counted{};
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < counted.size(); ++rank)
    ranks.emplace_back([&counted, rank] {
      const Account account(Counted::Shapes);
      std::vector<at::Tensor> kept;
      for (int i = 0; i < 100; ++i) {
        kept.push_back(at::empty({static_cast<int64_t>(rank) + 1}, at::device(at::kMeta).dtype(at::kByte)));
        const at::Tensor brief = shape();
      }
      counted[rank] = account.usage().total;
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(counted, (std::array<int64_t, 4>{100, 200, 300, 400}));
}

TEST(Account, TellsTheMomentOfThePeak) {
  int64_t moment = 1;
  Account account(Counted::Shapes, [&moment] { return moment; });
  at::Tensor first = shape();
  moment = 2;
  at::Tensor second = shape();
  first.reset();
  moment = 3;
  first = shape();  // as much as before
  EXPECT_EQ(account.usage().moment, 2);
  account.reset_peaks();
  EXPECT_EQ(account.usage().moment, 3);
  const KindScope host(Kind::Host);
  moment = 4;
  const at::Tensor third = shape();
  EXPECT_EQ(account.usage().moment, 3) << "host memory is not part of the device";
}

TEST(Account, CountsBlocksThatAreNoTensors) {
  const Account account;
  char memory = 0;
  {
    const KindScope host(Kind::Host);
    count_block(&memory, 3 * kBytes);
  }
  EXPECT_EQ(account.usage().of(Kind::Host), 3 * kBytes);
  end_block(&memory);
  EXPECT_EQ(account.usage().total, 0);
}

TEST(Account, IgnoresScopesWithoutAnAccount) {
  const KindScope scope(Kind::States);
  EXPECT_EQ(block().numel(), kBytes);
}

TEST(Account, CountsInsideAnOpenAccount) {
  const Account outer;
  const KindScope states(Kind::States);
  at::Tensor before = block(), inside;
  {
    const Account inner;
    inside = block();
    before.reset();
    EXPECT_EQ(inner.usage().of(Kind::States), kBytes)
        << "the kind that holds for the outer one, and what was made here";
  }
  EXPECT_EQ(outer.usage().total, kBytes);
  EXPECT_EQ(outer.usage().peak_total, 2 * kBytes);
  inside.reset();
  EXPECT_EQ(outer.usage().total, 0);
}

TEST(Account, CountsHostMemoryApartFromTheDevice) {
  Account account;
  const at::Tensor here = block();
  at::Tensor there;
  {
    const KindScope host(Kind::Host);
    there = block();
  }
  EXPECT_EQ(account.usage().total, 2 * kBytes);
  EXPECT_EQ(account.usage().device, kBytes);
  {
    const at::Tensor brief = block();
  }
  EXPECT_EQ(account.usage().peak_device, 2 * kBytes);
  account.reset_peaks();
  EXPECT_EQ(account.usage().peak_device, kBytes);
}

// LibTorch's own allocator would warn about every thousandth block, including the first one.
TEST(Account, PrintsNoWarningsAboutEarlierBlocks) {
  {
    const Account first;
  }  // the allocator reports from here on
  std::vector<at::Tensor> before;
  for (int i = 0; i < 1001; ++i) before.push_back(block());
  const Account account;
  testing::internal::CaptureStderr();
  before.clear();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(account.usage().total, 0);
}

// A thread that the account does not cover reports no deallocation.
TEST(Account, CountsABlockOnceAfterAnUnseenFree) {
  const Account account;
  for (int i = 0; i < 8; ++i) {
    at::Tensor x = block();
    void* const address = x.mutable_data_ptr();
    const int64_t counted = account.usage().live[static_cast<size_t>(Kind::Buffers)];
    std::thread([gone = std::exchange(x, {})]() mutable { gone.reset(); }).join();
    const at::Tensor again = block();
    if (again.mutable_data_ptr() != address) continue;  // may be where an earlier block was freed, unseen
    EXPECT_EQ(account.usage().live[static_cast<size_t>(Kind::Buffers)], counted);
    return;
  }
  GTEST_SKIP() << "the system gave other addresses";
}

TEST(Account, RefusesAThreadWithAnOpenProfiler) {
  struct Profiler : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
    bool memoryProfilingEnabled() const override { return true; }
  };
  const c10::DebugInfoGuard open(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Profiler>());
  EXPECT_NE(test::thrown_message([] { const Account account; }).find("a thread without an open profiler"),
            std::string::npos);
}

}  // namespace
}  // namespace colossal::memory::account_test
