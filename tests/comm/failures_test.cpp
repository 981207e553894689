// Behaviour when ranks disagree, fail, leave or never arrive.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "support/thrown_message.h"

namespace colossal::test::failures_test {
namespace {

using comm::Group;
using comm::Reduce;
using comm::World;
using testing::AllOf;
using testing::HasSubstr;

std::shared_ptr<Group> all(World& world, const std::string& name = "tensor") {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group(name, ranks);
}

/// Returns the errors of all ranks of a group in which rank 1 makes another call than the others.
template <class One, class Other>
std::vector<std::string> disagreement(int n, const One& one, const Other& other) {
  std::vector<std::string> messages(n);
  comm::run_ranks(n, [&](World& world) {
    auto group = all(world);
    group->barrier().wait();
    messages[world.rank()] = thrown_message([&] { world.rank() == 1 ? other(*group) : one(*group); });
  });
  return messages;
}

void all_reduce(Group& group, int64_t numel, at::ScalarType dtype = at::kFloat, Reduce op = Reduce::Sum) {
  at::Tensor x = at::zeros({numel}, dtype);
  group.all_reduce(x, op).wait();
}

TEST(Disagreement, NamesBothCollectivesOnEveryRank) {
  const auto messages = disagreement(
      3, [](Group& group) { all_reduce(group, 8); },
      [](Group& group) {
        at::Tensor out = at::zeros({48});
        group.all_gather(out, at::zeros({16})).wait();
      });
  for (const auto& message : messages) {
    EXPECT_EQ(message,
              "[comm] group \"tensor\": rank 1 called all_gather of 64 bytes of Float (call 2) while rank 0 called "
              "all_reduce(sum) of 32 bytes of Float (call 2); every rank must make the same calls in the same order");
  }
}

TEST(Disagreement, DetectsSizesOfSmallAndLargeTensors) {
  for (int64_t numel : {8, 1000000}) {
    const auto messages = disagreement(
        2, [&](Group& group) { all_reduce(group, numel); }, [&](Group& group) { all_reduce(group, numel + 1); });
    for (const auto& message : messages) {
      EXPECT_THAT(message,
                  AllOf(HasSubstr(concat("of ", 4 * numel, " bytes")), HasSubstr(concat("of ", 4 * numel + 4))));
    }
  }
}

TEST(Disagreement, DetectsDtypeReductionAndRoot) {
  auto messages = disagreement(
      2, [](Group& group) { all_reduce(group, 8, at::kFloat); }, [](Group& group) { all_reduce(group, 8, at::kInt); });
  for (const auto& message : messages) EXPECT_THAT(message, AllOf(HasSubstr("of Float"), HasSubstr("of Int")));
  messages = disagreement(
      2, [](Group& group) { all_reduce(group, 8, at::kFloat, Reduce::Max); },
      [](Group& group) { all_reduce(group, 8, at::kFloat, Reduce::Min); });
  for (const auto& message : messages) EXPECT_THAT(message, AllOf(HasSubstr("(max)"), HasSubstr("(min)")));
  const auto broadcast = [](Group& group, int root) {
    at::Tensor x = at::zeros({8});
    group.broadcast(x, root).wait();
  };
  messages = disagreement(2, [&](Group& group) { broadcast(group, 0); }, [&](Group& group) { broadcast(group, 1); });
  for (const auto& message : messages) EXPECT_THAT(message, AllOf(HasSubstr("with root 0"), HasSubstr("with root 1")));
}

TEST(Disagreement, NamesThePairWithDifferentRowsInAllToAll) {
  const auto exchange = [](Group& group, std::vector<int64_t> out_rows) {
    at::Tensor out = at::zeros({std::accumulate(out_rows.begin(), out_rows.end(), int64_t{0})});
    group.all_to_all(out, at::zeros({4}), out_rows, {1, 3}).wait();
  };
  const auto messages =
      disagreement(2, [&](Group& group) { exchange(group, {1, 1}); }, [&](Group& group) { exchange(group, {2, 3}); });
  for (const auto& message : messages) {
    EXPECT_THAT(message, HasSubstr("rank 0 sends 12 bytes to rank 1, which expects 8"));
  }
}

TEST(Disagreement, NamesBothSizesOfSendAndRecv) {
  const auto messages = disagreement(
      2,
      [](Group& group) {
        at::Tensor x = at::zeros({4});
        group.recv(x, 1).wait();
      },
      [](Group& group) { group.send(at::zeros({5}), 0).wait(); });
  EXPECT_THAT(messages[0], HasSubstr("rank 1 sent 20 bytes of Float while rank 0 receives 16 bytes of Float"));
}

TEST(Disagreement, LeavesTheGroupDead) {
  comm::run_ranks(2, [](World& world) {
    auto group = all(world);
    EXPECT_THROW(all_reduce(*group, 4 + world.rank()), Error);
    EXPECT_THAT(thrown_message([&] { all_reduce(*group, 4); }), HasSubstr("of 20 bytes"));
  });
}

TEST(Arguments, FailBeforeAnyMessage) {
  comm::run_ranks(2, [](World& world) {
    auto group = all(world);
    at::Tensor x = at::zeros({4, 4}), half = at::zeros({3}), strided = x.t(),
               complex = at::zeros({2}, at::kComplexFloat);
    EXPECT_THAT(thrown_message([&] { group->all_reduce(strided, Reduce::Sum); }), HasSubstr("contiguous"));
    EXPECT_THAT(thrown_message([&] { group->all_gather(half, x); }), HasSubstr("an output of 2 inputs: got 3"));
    EXPECT_THAT(thrown_message([&] { group->reduce_scatter(x, half, Reduce::Sum); }),
                HasSubstr("an input of 2 outputs"));
    EXPECT_THAT(thrown_message([&] { group->broadcast(x, 2); }), HasSubstr("a rank in [0, 2): got 2"));
    EXPECT_THAT(thrown_message([&] { group->send(x, world.rank()); }), HasSubstr("needs a peer other than this rank"));
    EXPECT_THAT(thrown_message([&] { group->all_to_all(x, x, {1, 2}, {2, 2}); }), HasSubstr("got 3 for 4 rows"));
    EXPECT_THAT(thrown_message([&] { group->all_reduce(complex, Reduce::Sum); }), HasSubstr("reductions support"));
    EXPECT_EQ(world.traffic().total("tensor", "broadcast").calls, 0);
    all_reduce(*group, 4);  // the group still works
  });
}

TEST(RunRanks, ReportsTheFirstFailure) {
  const std::string message = thrown_message([] {
    comm::run_ranks(4, [](World& world) {
      auto group = all(world);
      if (world.rank() == 2) throw Error("data", "the file is empty");
      all_reduce(*group, 100000);
    });
  });
  EXPECT_EQ(message, "[data] the file is empty (rank 2 of 4)");
}

TEST(RunRanks, KeepsTheTypeOfForeignExceptions) {
  struct Unusual : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const auto fail = [](World& world) {
    if (world.rank() == 0) throw Unusual("odd");
    all(world)->barrier().wait();
  };
  EXPECT_THROW(comm::run_ranks(2, fail), Unusual);
}

TEST(RunRanks, FailsCallsThatWaitForAFinishedRank) {
  const std::string message = thrown_message([] {
    comm::run_ranks(2, [](World& world) {
      auto group = all(world);
      group->barrier().wait();
      if (world.rank() == 0) all_reduce(*group, 4);
    });
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1 has left while rank 0 waits"), HasSubstr("(rank 0 of 2)")));
}

TEST(RunRanks, FailsReceivesFromAFailedRank) {
  const std::string message = thrown_message([] {
    comm::run_ranks(2, [](World& world) {
      auto group = all(world);
      at::Tensor x = at::zeros({1000000});
      if (world.rank() == 1) throw Error("probe", "no message");
      group->recv(x, 1).wait();
    });
  });
  EXPECT_EQ(message, "[probe] no message (rank 1 of 2)");
}

/// Runs 4 ranks, of which rank 2 makes no call until the others have failed; returns their messages.
std::vector<std::string> messages_of_a_stall(const std::function<void(Group&)>& call) {
  std::vector<std::string> messages(4);
  std::atomic<int> failed{0};
  comm::RankOptions options;
  options.watchdog = std::chrono::milliseconds(500);
  comm::run_ranks(
      4,
      [&](World& world) {
        auto group = all(world);
        at::Tensor out = at::zeros({4 * 16});
        group->all_gather(out, at::zeros({16})).wait();
        const comm::PhaseScope backward(world.traffic(), comm::Phase::Backward);
        if (world.rank() == 2) {
          while (failed < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        messages[world.rank()] = thrown_message([&] { call(*group); });
        ++failed;
      },
      options);
  return messages;
}

TEST(Watchdog, NamesTheLateRankTheGroupAndTheCall) {
  const auto messages = messages_of_a_stall([](Group& group) { all_reduce(group, 1024); });
  for (const auto& message : messages) {
    EXPECT_EQ(
        message,
        "[watchdog] rank 2 of 4 never called all_reduce #2 of 4096 bytes on group \"tensor\" (backward); its last "
        "call there was all_gather #1 of 64 bytes; waited 0.5 s");
  }
}

TEST(Watchdog, WatchesAsynchronousCalls) {
  const auto messages = messages_of_a_stall([](Group& group) { all_reduce(group, 1000000); });
  for (const auto& message : messages) {
    EXPECT_THAT(message, HasSubstr("rank 2 of 4 never called all_reduce #2 of 4000000 bytes"));
  }
}

TEST(Watchdog, NamesTheRankThatNeverSent) {
  const auto messages = messages_of_a_stall([](Group& group) {
    at::Tensor x = at::zeros({4});
    group.recv(x, (group.rank() + 2) % 4).wait();
  });
  EXPECT_THAT(messages[0], HasSubstr("what rank"));
  EXPECT_THAT(messages[0], HasSubstr("recv of 16 bytes on group \"tensor\" (backward)"));
}

TEST(Watchdog, BlamesTheCauseAndNotItsVictims) {
  // Rank 3 makes no call in the pair (2, 3). Rank 2 is therefore late for the group of all ranks, in which 0 and 1
  // wait.
  std::mutex mutex;
  std::vector<std::string> messages;
  std::atomic<int> failed{0};
  comm::RankOptions options;
  options.watchdog = std::chrono::milliseconds(1000);
  comm::run_ranks(
      4,
      [&](World& world) {
        auto everyone = all(world, "everyone");
        const int first = world.rank() / 2 * 2;
        auto pair = world.make_group("pair", {first, first + 1});
        const std::string message = thrown_message([&] {
          if (world.rank() == 3) {
            while (failed < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
          if (world.rank() >= 2) all_reduce(*pair, 4);
          all_reduce(*everyone, 4);
        });
        ++failed;
        const std::lock_guard lock(mutex);
        messages.push_back(message);
      },
      options);
  for (const auto& message : messages) {
    EXPECT_THAT(message,
                testing::AnyOf(HasSubstr("rank 1 of 2 never called all_reduce #1 of 16 bytes on group \"pair\""),
                               HasSubstr("rank 3 of 4 never called all_reduce #1 of 16 bytes on group")));
  }
}

TEST(Watchdog, IgnoresSlowRanksWithinTheLimit) {
  comm::RankOptions options;
  options.watchdog = std::chrono::milliseconds(2000);
  EXPECT_NO_THROW(comm::run_ranks(
      2,
      [](World& world) {
        auto group = all(world);
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
        all_reduce(*group, 4);
      },
      options));
}

}  // namespace
}  // namespace colossal::test::failures_test
