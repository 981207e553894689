// Reports of the watchdog about waiting ranks, and its exceptions for busy ranks. Its verdicts: failures_test.cpp.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/decorators/late_ranks.h"
#include "colossal/comm/rank_world.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "support/thrown_message.h"

namespace colossal::test::watchdog_test {
namespace {

using comm::Group;
using comm::Reduce;
using comm::Stall;
using comm::World;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

constexpr std::chrono::minutes kPlenty(2);  // limit for events that happen at once or never

void all_reduce(Group& group) {
  at::Tensor x = at::zeros({8});
  group.all_reduce(x, Reduce::Sum).wait();
}

/// Records the stalls that all ranks report, in order.
class Told {
 public:
  void listen(World& world) {
    world.on_stall([this, rank = world.rank()](const Stall& stall) {
      const std::lock_guard lock(mutex_);
      all_.emplace_back(rank, stall);
      changed_.notify_all();
    });
  }
  /// Waits until `rank` has reported `count` stalls and returns the last one; after a long time returns the latest
  /// report.
  Stall wait_for(int rank, int count) {
    std::unique_lock lock(mutex_);
    Stall last;
    changed_.wait_for(lock, kPlenty, [&] {
      int found = 0;
      for (const auto& [to, stall] : all_)
        if (to == rank && ++found == count) last = stall;
      return found >= count;
    });
    return last;
  }
  int seen_somewhere() {
    const std::lock_guard lock(mutex_);
    int seen = 0;
    for (const auto& [rank, stall] : all_) seen += stall.seen_here;
    return seen;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::pair<int, Stall>> all_;
};

TEST(Verdict, ReachesRanksDespiteAStranger) {
  const auto store = comm::Store::in_memory();
  for (const char* key : {"verdict", "claims/verdict"}) store->add(key, 1);
  comm::Announcements announcements(store->sealed("secret", {}));
  announcements.offer_verdict("the first");
  EXPECT_EQ(announcements.verdict(), "the first");
  announcements.offer_verdict("another one");
  EXPECT_EQ(announcements.verdict(), "the first");
}

TEST(Notice, NamesTheLateRankOnceAndReportsTheEnd) {
  Told told;
  const comm::RankOptions options{.watchdog = std::chrono::minutes(10), .notice = milliseconds(100)};
  comm::run_ranks(
      3,
      [&](World& world) {
        told.listen(world);
        auto group = world.make_group("tensor", {0, 1, 2});
        all_reduce(*group);
        if (world.rank() == 1) {
          const Stall stall = told.wait_for(0, 1);
          EXPECT_EQ(stall.text,
                    "rank 1 of 3 has not called all_reduce #2 of 32 bytes on group \"tensor\" (setup); its last call "
                    "there was all_reduce #1 of "
                    "32 bytes; waited 0.1 s");
          EXPECT_FALSE(stall.is_over);
          EXPECT_GE(stall.seconds, 0.1);
          EXPECT_EQ(stall.busy_with, "");
        }
        all_reduce(*group);
        const Stall over = told.wait_for(0, 2);
        EXPECT_TRUE(over.is_over);
        EXPECT_THAT(over.text,
                    MatchesRegex("went on after [0-9]+ s: all_reduce #2 of 32 bytes on group \"tensor\" \\(setup\\)"));
        all_reduce(*group);
      },
      options);
  EXPECT_EQ(told.seen_somewhere(), 2) << "one rank speaks for all";
}

TEST(Notice, NamesTheRankThatDoesNotSend) {
  Told told;
  const comm::RankOptions options{.watchdog = std::chrono::minutes(10), .notice = milliseconds(100)};
  comm::run_ranks(
      2,
      [&](World& world) {
        told.listen(world);
        auto group = world.make_group("pipeline", {0, 1});
        at::Tensor x = at::zeros({4});
        if (world.rank() == 1) {
          group->recv(x, 0).wait();
          return;
        }
        EXPECT_EQ(told.wait_for(0, 1).text,
                  "rank 0 of 2 has not sent what rank 1 waits for: recv of 16 bytes on group \"pipeline\" (setup); "
                  "waited 0.1 s");
        group->send(x, 1).wait();
      },
      options);
}

TEST(Notice, SaysWhatTheLateRankIsBusyWith) {
  Told told;
  const comm::RankOptions options{.watchdog = std::chrono::minutes(10), .notice = milliseconds(100)};
  comm::run_ranks(
      2,
      [&](World& world) {
        told.listen(world);
        auto group = world.make_group("tensor", {0, 1});
        if (world.rank() == 0) {
          const auto busy = world.busy("waiting for requests");
          for (const int rank : {0, 1}) {
            const Stall stall = told.wait_for(rank, 1);
            EXPECT_EQ(stall.busy_with, "waiting for requests");
            EXPECT_THAT(stall.text, StartsWith("rank 0 has been waiting for requests for "));
          }
        }
        all_reduce(*group);
        const Stall over = told.wait_for(world.rank(), 2);
        EXPECT_TRUE(over.is_over);
        EXPECT_EQ(over.busy_with, "waiting for requests");
      },
      options);
}

// Rank 1 waits for rank 0, which is busy for several times the limit, and rank 2 waits for rank 1. The run continues.
TEST(Busy, CausesNoStallForAnyDuration) {
  Told told;
  std::atomic<bool> was_told{false};
  const milliseconds limit(2000);
  const comm::RankOptions options{.watchdog = limit, .notice = milliseconds(100)};
  comm::run_ranks(
      3,
      [&](World& world) {
        told.listen(world);
        auto first = world.rank() < 2 ? world.make_group("first", {0, 1}) : nullptr;
        auto second = world.rank() > 0 ? world.make_group("second", {1, 2}) : nullptr;
        if (world.rank() == 0) {
          const auto busy = world.busy("saving a checkpoint");
          EXPECT_THAT(told.wait_for(0, 1).text, MatchesRegex("rank 0 has been saving a checkpoint for [0-9]+ s; "
                                                             "waiting for it: all_reduce #1 of 32 bytes on group "
                                                             "\"first\" \\(setup\\)"));
          was_told = true;
          std::this_thread::sleep_for(4 * limit);
        }
        if (first) all_reduce(*first);
        if (second) all_reduce(*second);
      },
      options);
  EXPECT_TRUE(was_told);
}

// After its scope, a busy announcement no longer excuses a rank.
TEST(Busy, EndsWithItsScope) {
  const comm::RankOptions options{.watchdog = milliseconds(500), .notice = milliseconds(100)};
  const std::string message = thrown_message([&] {
    std::atomic<bool> failed{false};
    comm::run_ranks(
        2,
        [&](World& world) {
          auto group = world.make_group("tensor", {0, 1});
          {
            const auto busy = world.busy("saving a checkpoint");
            std::this_thread::sleep_for(milliseconds(300));  // long enough to be announced
          }
          if (world.rank() == 0) {
            while (!failed) std::this_thread::sleep_for(milliseconds(5));
            return;
          }
          try {
            all_reduce(*group);
          } catch (...) {
            failed = true;
            throw;
          }
        },
        options);
  });
  EXPECT_THAT(message, HasSubstr("rank 0 of 2 never called all_reduce #1 of 32 bytes on group \"tensor\""));
}

/// A transport like NCCL: waiting returns at once, and the collective is done when the device reaches it.
class OfADevice : public comm::IdleGroup {
 public:
  using IdleGroup::IdleGroup;
  comm::Work issue(const comm::Call&) override { return comm::Work(std::make_shared<State>(done_)); }
  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
    changed_.notify_all();
  }
  std::string wait_for_abort() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPlenty, [this] { return !reason_.empty(); });
    return reason_;
  }
  bool is_aborted() {
    const std::lock_guard lock(mutex_);
    return !reason_.empty();
  }
  void finish() { *done_ = true; }

 private:
  struct State : comm::Work::State {
    explicit State(std::shared_ptr<std::atomic<bool>> is_done) : is_done_(std::move(is_done)) {}
    void wait() override {}
    bool done() override { return *is_done_; }
    const std::shared_ptr<std::atomic<bool>> is_done_;
  };
  std::shared_ptr<std::atomic<bool>> done_ = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string reason_;
};

/// One rank of two, with device groups; the test decides what the other one does.
class HalfAWorld {
 public:
  HalfAWorld(const std::shared_ptr<comm::Store>& store, int rank, milliseconds limit)
      : world_(
            {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2, .backend = "device", .watchdog = limit},
            [this](const comm::Membership& member) {
              return device_ = std::make_shared<OfADevice>(member.name, member.rank, member.size());
            },
            store),
        group_(world_.make_group("tensor", {0, 1})) {}
  OfADevice& device() { return *device_; }
  Group& group() { return *group_; }

 private:
  std::shared_ptr<OfADevice> device_;
  comm::RankWorld world_;
  std::shared_ptr<Group> group_;
};

TEST(WorkOfADevice, IsWatchedBeyondTheWaitOfTheHost) {
  const auto store = comm::Store::in_memory();
  HalfAWorld one(store, 0, milliseconds(500)), other(store, 1, milliseconds(500));
  all_reduce(one.group());  // returns at once; the other rank never joins
  EXPECT_EQ(one.device().wait_for_abort(),
            "rank 1 of 2 never called all_reduce #1 of 32 bytes on group \"tensor\" (setup); it has made no call "
            "there; waited 0.5 s");
  EXPECT_THAT(thrown_message([&] { all_reduce(one.group()); }), HasSubstr("[watchdog] rank 1 of 2 never called"));
}

TEST(WorkOfADevice, IsWatchedIfItIsATransfer) {
  const auto store = comm::Store::in_memory();
  HalfAWorld one(store, 0, milliseconds(500)), other(store, 1, milliseconds(500));
  at::Tensor x = at::zeros({4});
  one.group().recv(x, 1).wait();
  EXPECT_THAT(one.device().wait_for_abort(),
              HasSubstr("rank 1 of 2 never sent what rank 0 waits for: recv of 16 bytes"));
}

TEST(WorkOfADevice, IsReleasedWhenTheDeviceIsDone) {
  const auto store = comm::Store::in_memory();
  HalfAWorld one(store, 0, milliseconds(500)), other(store, 1, milliseconds(500));
  all_reduce(one.group());
  one.device().finish();
  std::this_thread::sleep_for(milliseconds(2000));
  EXPECT_FALSE(one.device().is_aborted());
  EXPECT_NO_THROW(all_reduce(one.group()));
}

}  // namespace
}  // namespace colossal::test::watchdog_test
