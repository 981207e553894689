// Leases of a shard: whoever asks for one while another ends sees what was written under that.
#include "colossal/memory/shard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace colossal::memory::shard_test {
namespace {

/// Keeps copies, and while it takes the first one back gives another thread time to bring what is old.
class SlowHome final : public Home {
 public:
  at::Tensor bring(const at::Tensor& kept) override {
    const std::lock_guard lock(mutex_);
    ++brought_;
    changed_.notify_all();
    return kept.clone();
  }
  at::Tensor put(const at::Tensor& lent) override {
    std::unique_lock lock(mutex_);
    is_putting_ = true;
    changed_.notify_all();
    // Nobody comes where leases are safe: then this is how long the test takes, and no more depends on it.
    if (brought_ == 1) changed_.wait_for(lock, std::chrono::milliseconds(200), [&] { return brought_ > 1; });
    return lent.clone();
  }
  void wait_for_put() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_putting_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int brought_ = 0;
  bool is_putting_ = false;
};

TEST(Lease, ThatBeginsWhileAnotherEndsOnAnotherThreadSeesWhatWasWritten) {
  const auto home = std::make_shared<SlowHome>();
  const Shard shard({.values = at::ones({4}), .home = home}, {});
  Lease first = shard.lease();
  first->values.fill_(2);
  std::thread ends([first = std::move(first)]() mutable { first.reset(); });
  home->wait_for_put();
  EXPECT_EQ(shard.lease()->values.sum().item<double>(), 8);
  ends.join();
}

TEST(Lease, IsTheSameForAllWhoHaveOne) {
  const Shard shard({.values = at::ones({4})}, {});
  const Lease one = shard.lease(), other = shard.lease();
  EXPECT_EQ(one, other);
}

}  // namespace
}  // namespace colossal::memory::shard_test
