// Exchanges between ranks outside of the model.
#include "colossal/comm/agreement.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"

namespace colossal::test::agreement_test {
namespace {

using comm::World;
using testing::ElementsAre;
using testing::IsEmpty;

std::shared_ptr<comm::Group> everybody(World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group("world", ranks);
}

TEST(Agreement, GivesTheErrorOfTheLowestFailingRankToAll) {
  comm::run_ranks(4, [](World& world) {
    const auto group = everybody(world);
    const auto error = comm::agreed_error(*group, at::kCPU, [&] {
      require(world.rank() != 3, "late", "the last rank fails too");
      require(world.rank() != 1, "data", "no file of rank ", world.rank());
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->component(), "data");
    EXPECT_EQ(error->message(), "no file of rank 1 (rank 1 of 4)");
    EXPECT_TRUE(error->is_on_all_ranks());
    EXPECT_FALSE(comm::agreed_error(*group, at::kCPU, [] {}));
  });
}

TEST(Agreement, KeepsAnErrorOfOneRankAsItIs) {
  comm::run_ranks(1, [](World& world) {
    const auto error =
        comm::agreed_error(*everybody(world), at::kCPU, [] { throw Error("data", "there is no such file"); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->message(), "there is no such file");
    EXPECT_TRUE(error->is_on_all_ranks());
  });
}

TEST(Agreement, FindsTheFirstRankWithAnotherText) {
  comm::run_ranks(4, [](World& world) {
    const auto group = everybody(world);
    EXPECT_FALSE(comm::find_difference(*group, at::kCPU, "equal"));
    EXPECT_EQ(world.traffic().total("world").bytes, 2 * 3 * 16 / 4);
    EXPECT_FALSE(comm::find_difference(*group, at::kCPU, ""));
    const std::string own = world.rank() < 2 ? "" : concat("text of rank ", world.rank());
    const auto found = comm::find_difference(*group, at::kCPU, own);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, 2);
    EXPECT_EQ(found->first, "");
    EXPECT_EQ(found->other, "text of rank 2");
  });
}

TEST(Agreement, AddsUpNumbers) {
  comm::run_ranks(4, [](World& world) {
    EXPECT_EQ(comm::sum(*everybody(world), 1LL << (10 * world.rank())), 1 + 1024.0 + 1048576.0 + 1073741824.0);
    EXPECT_EQ(world.traffic().total("world", "all_reduce").calls, 1);
    EXPECT_EQ(world.traffic().total("world").bytes, 2 * 3 * 8 / 4);
  });
}

TEST(Agreement, BroadcastsTheTextOfAnyRank) {
  comm::run_ranks(3, [](World& world) {
    const auto group = everybody(world);
    for (int root = 0; root < 3; ++root) {
      const std::string own(static_cast<size_t>(10 * world.rank()), static_cast<char>('a' + world.rank()));
      const std::string want(static_cast<size_t>(10 * root), static_cast<char>('a' + root));
      EXPECT_EQ(comm::broadcast_text(*group, at::kCPU, root, own), want);
    }
  });
}

TEST(Agreement, GathersTextsOfAnyLengthsInTheOrderOfRanks) {
  comm::run_ranks(3, [](World& world) {
    const auto group = everybody(world);
    const std::string own = world.rank() == 1 ? std::string() : std::string(world.rank() + 1, '\0') + "x";
    const auto texts = comm::gather_text(*group, at::kCPU, 2, own);
    if (world.rank() == 2)
      EXPECT_THAT(texts, ElementsAre(std::string("\0x", 2), "", std::string("\0\0\0x", 4)));
    else
      EXPECT_THAT(texts, IsEmpty());
  });
}

}  // namespace
}  // namespace colossal::test::agreement_test
