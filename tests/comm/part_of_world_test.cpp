// Parts of a world: ranks, groups, counters and reports of a part, and refusals.
#include "colossal/comm/part_of_world.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "colossal/base/error.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "support/thrown_message.h"

namespace colossal::test::part_of_world_test {
namespace {

using comm::PartOfWorld;
using comm::World;
using testing::HasSubstr;

constexpr std::chrono::minutes kPlenty(2);  // limit for events that happen at once or never

TEST(PartOfWorld, NumbersItsOwnRanks) {
  comm::run_ranks(6, [](World& world) {
    const PartOfWorld part(world, 2);
    EXPECT_EQ(part.size(), 3);
    EXPECT_EQ(part.parts(), 2);
    EXPECT_EQ(part.rank(), world.rank() % 3);
    EXPECT_EQ(part.index(), world.rank() / 3);
    EXPECT_EQ(part.first_rank_of(1), 3);
    EXPECT_EQ(part.local_rank(), world.local_rank()) << "ranks of all parts share the GPUs of a host";
    EXPECT_EQ(part.local_size(), 6);
    EXPECT_EQ(part.backend(), "threads");
  });
}

TEST(PartOfWorld, ReducesAmongItsOwnRanks) {
  comm::run_ranks(4, [](World& world) {
    PartOfWorld part(world, 2);
    comm::Mesh mesh(part, {{"tensor", 2}});
    EXPECT_EQ(comm::sum(mesh.all(), world.rank()), part.index() == 0 ? 0 + 1 : 2 + 3);
    const std::string text = comm::broadcast_text(mesh.all(), at::kCPU, 1, concat("of rank ", world.rank()));
    EXPECT_EQ(text, part.index() == 0 ? "of rank 1" : "of rank 3");
  });
}

// One part calls its groups more often than the other one, and ends earlier.
TEST(PartOfWorld, CommunicatesWithoutOtherParts) {
  comm::run_ranks(4, [](World& world) {
    PartOfWorld part(world, 2);
    comm::Mesh mesh(part, {comm::Mesh::batch("data", 2)});
    const int calls = part.index() == 0 ? 3 : 50;
    for (int i = 0; i < calls; ++i) {
      at::Tensor x = at::ones({6});
      mesh.group("data").all_reduce(x, comm::Reduce::Sum).wait();
      EXPECT_TRUE(x.eq(2).all().item<bool>());
    }
    const auto count = part.traffic().total("data", "all_reduce");
    EXPECT_EQ(count.calls, calls);
    EXPECT_EQ(count.elements, calls * 6) << "2 (n-1)/n of 6 elements, n = 2";
    EXPECT_EQ(&part.traffic(), &world.traffic());
  });
}

TEST(PartOfWorld, MayBeOneRank) {
  comm::run_ranks(3, [](World& world) {
    PartOfWorld part(world, 3);
    comm::Mesh mesh(part, {{"tensor", 1}});
    EXPECT_EQ(part.backend(), "none");
    EXPECT_EQ(mesh.all().size(), 1);
    EXPECT_EQ(comm::sum(mesh.all(), world.rank()), world.rank());
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

// Rank 0 is busy, and rank 2 of the other part is late.
TEST(PartOfWorld, BlamesALateRankWhileAnotherPartIsBusy) {
  std::promise<std::string> heard;
  const comm::RankOptions options{.watchdog = std::chrono::minutes(10), .notice = std::chrono::milliseconds(100)};
  comm::run_ranks(
      4,
      [&](World& world) {
        PartOfWorld part(world, 2);
        if (world.rank() == 3)
          part.on_stall([&](const comm::Stall& stall) {
            if (!stall.is_over) heard.set_value(stall.text);
          });
        comm::Mesh mesh(part, {{"tensor", 2}});
        mesh.all().barrier().wait();
        const auto busy = world.rank() == 0 ? part.busy("waiting for requests") : nullptr;
        if (world.rank() == 2) {
          auto text = heard.get_future();
          ASSERT_EQ(text.wait_for(kPlenty), std::future_status::ready);
          EXPECT_THAT(text.get(), HasSubstr("rank 0 of 2 has not called barrier #2 on group \"tensor\""));
        }
        if (part.index() == 1) mesh.all().barrier().wait();
      },
      options);
}

TEST(PartOfWorld, RefusesPartsOfDifferentSizes) {
  comm::run_ranks(4, [](World& world) {
    for (const int parts : {-1, 0, 3, 8})
      EXPECT_EQ(thrown_message([&] { PartOfWorld part(world, parts); }),
                concat("[comm] the number of parts must divide the number of ranks: got ", parts, " parts of 4 ranks"));
  });
}

TEST(PartOfWorld, RefusesGroupsWithRanksOfOtherParts) {
  comm::run_ranks(4, [](World& world) {
    PartOfWorld part(world, 2);
    for (const int other : {-1, 2, 3})
      EXPECT_EQ(thrown_message([&] { part.make_group("tensor", {part.rank(), other}); }),
                concat("[comm] group \"tensor\": ranks must be in [0, 2): got ", other));
  });
}

}  // namespace
}  // namespace colossal::test::part_of_world_test
