// Bytes by kind: what is counted, when it stops counting, and for whom.
#include "colossal/memory/account.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/ranks_values.h"

namespace colossal::memory::account_test {
namespace {

constexpr int64_t kBytes = 1 << 20;
at::Tensor block() { return at::empty({kBytes}, at::kByte); }

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
  state.reset();  // in no scope: it is still of the kind that it was made as
  EXPECT_EQ(account.usage().of(Kind::States), 0);
  const at::Tensor other = block();
  EXPECT_EQ(account.usage().of(Kind::Buffers), kBytes);
  EXPECT_EQ(account.usage().total, 2 * kBytes);
  EXPECT_EQ(account.usage().peak_total, 3 * kBytes);
}

TEST(Account, PeaksBeginAnew) {
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

TEST(Account, LeavesOutWhatWasThereBeforeAndOtherThreads) {
  at::Tensor before = block();
  const Account account;
  at::Tensor elsewhere;
  std::thread([&] { elsewhere = block(); }).join();
  before.reset();
  elsewhere.reset();
  EXPECT_EQ(account.usage().total, 0);
}

TEST(Account, ScopesWithoutAnAccountDoNothing) {
  const KindScope scope(Kind::States);
  EXPECT_EQ(block().numel(), kBytes);
}

TEST(Account, IsOneAtATime) {
  const Account account;
  EXPECT_NE(test::thrown_message([] { const Account second; }).find("is open on this thread already"),
            std::string::npos);
}

}  // namespace
}  // namespace colossal::memory::account_test
