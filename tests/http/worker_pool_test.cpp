// The turns of tasks.
#include "colossal/http/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::http_test::worker_pool_test {
namespace {

using http::TaskKind;
using http::WorkerPool;
using ::testing::ElementsAre;

/// A pool of one thread whose tasks write their names. The first task holds the thread until all are posted.
class Order {
 public:
  Order() : pool_(1) {
    pool_.post([this, held = posted_.get_future().share()] {
      begun_.set_value();
      held.wait();
    });
    begun_.get_future().wait();
  }
  void post(const std::string& name, const TaskKind& kind) {
    pool_.post([this, name] { names_.push_back(name); }, kind);
  }
  std::vector<std::string> run() {
    std::promise<void> ended;
    pool_.post([&] { ended.set_value(); }, {.client = "~ after the others"});
    posted_.set_value();
    ended.get_future().wait();
    pool_.stop();
    return names_;
  }

 private:
  std::vector<std::string> names_;
  std::promise<void> begun_, posted_;
  WorkerPool pool_;
};

TEST(WorkerPool, GivesClientsTurns) {
  Order order;
  for (const char* name : {"a1", "a2", "a3"}) order.post(name, {.client = "a"});
  for (const char* name : {"b1", "b2"}) order.post(name, {.client = "b"});
  order.post("c1", {.client = "c"});
  const std::vector<std::string> names = order.run();
  ASSERT_GE(names.size(), 3u);
  EXPECT_THAT(std::vector<std::string>(names.begin(), names.begin() + 3), ElementsAre("a1", "b1", "c1"));
}

TEST(WorkerPool, AlternatesLargeTasksOnOneThread) {
  Order order;
  for (const char* name : {"large 1", "large 2"}) order.post(name, {.client = "a", .is_large = true});
  for (const char* name : {"1", "2"}) order.post(name, {.client = name});
  EXPECT_THAT(order.run(), ElementsAre("large 1", "1", "large 2", "2"));
}

TEST(WorkerPool, KeepsAThreadFreeOfLargeTasks) {
  std::promise<void> release, small, last;
  const std::shared_future<void> is_released = release.get_future().share();
  std::atomic<int> large = 0;
  WorkerPool pool(2);
  for (int i = 0; i < 3; ++i)
    pool.post([&large, is_released] { is_released.wait(), ++large; }, {.client = concat(i), .is_large = true});
  pool.post([&small] { small.set_value(); });
  EXPECT_EQ(small.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  release.set_value();
  pool.post([&last] { last.set_value(); }, {.client = "last", .is_large = true});
  last.get_future().wait();
  EXPECT_EQ(large, 3);
}

}  // namespace
}  // namespace colossal::http_test::worker_pool_test
