// The counters equal the formulas of Group's contract exactly.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

#include "colossal/comm/run_ranks.h"

namespace colossal::test::counting_test {
namespace {

using comm::Phase;
using comm::PhaseScope;
using comm::Reduce;
using comm::World;

std::shared_ptr<comm::Group> all(World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group("all", ranks);
}

class Counting : public testing::TestWithParam<int> {};

TEST_P(Counting, EqualsTheRingFormulas) {
  const int n = GetParam();
  comm::run_ranks(n, [n](World& world) {
    auto group = all(world);
    const int64_t numel = 840;  // divisible by every n here
    at::Tensor small = at::zeros({numel}), big = at::zeros({n * numel});
    group->all_reduce(small, Reduce::Sum).wait();
    group->all_gather(big, small).wait();
    group->reduce_scatter(small, big, Reduce::Sum).wait();
    group->all_to_all(small, small.clone(), {}, {}).wait();
    group->broadcast(small, 0).wait();
    group->reduce(small, 0, Reduce::Sum).wait();
    group->barrier().wait();
    const std::map<std::string, double> wanted{{"all_reduce", 2.0 * (n - 1) * numel / n},
                                               {"all_gather", (n - 1.0) * numel},
                                               {"reduce_scatter", (n - 1.0) * numel},
                                               {"all_to_all", (n - 1.0) * numel / n},
                                               {"broadcast", (n - 1.0) * numel / n},
                                               {"reduce", (n - 1.0) * numel / n},
                                               {"barrier", 0}};
    for (const auto& [collective, elements] : wanted) {
      const auto count = world.traffic().total("all", collective);
      EXPECT_EQ(count.calls, 1) << collective;
      EXPECT_EQ(count.elements, elements) << collective;
      EXPECT_EQ(count.bytes, 4 * elements) << collective;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Counting, testing::Values(2, 3, 4, 8));

TEST(CountingRows, CountsRowsSentToOtherRanks) {
  comm::run_ranks(2, [](World& world) {
    auto group = all(world);
    const bool first = world.rank() == 0;
    // Rank 0 keeps 1 row and sends 4; rank 1 keeps 2 and sends 3. A row has 5 elements.
    const std::vector<int64_t> in_rows = first ? std::vector<int64_t>{1, 4} : std::vector<int64_t>{3, 2};
    const std::vector<int64_t> out_rows = first ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{4, 2};
    at::Tensor in = at::zeros({5, 5}, at::kDouble), out = at::zeros({first ? 4 : 6, 5}, at::kDouble);
    group->all_to_all(out, in, out_rows, in_rows).wait();
    EXPECT_EQ(world.traffic().total("all", "all_to_all").elements, first ? 20 : 15);
    EXPECT_EQ(world.traffic().total("all", "all_to_all").bytes, 8 * (first ? 20 : 15));
  });
}

TEST(CountingTransfers, CountsOnlyTheSender) {
  comm::run_ranks(2, [](World& world) {
    auto group = all(world);
    at::Tensor x = at::zeros({6});
    if (world.rank() == 0) group->send(x, 1).wait();
    if (world.rank() == 1) group->recv(x, 0).wait();
    EXPECT_EQ(world.traffic().total("all", "send").elements, world.rank() == 0 ? 6 : 0);
    EXPECT_EQ(world.traffic().total("all", "recv").calls, world.rank() == 1 ? 1 : 0);
    EXPECT_EQ(world.traffic().total("all", "recv").elements, 0);
  });
}

TEST(CountingPhases, KeepsGroupsAndPhasesApart) {
  comm::run_ranks(2, [](World& world) {
    auto one = world.make_group("one", {0, 1}), two = world.make_group("two", {0, 1});
    at::Tensor x = at::zeros({10});
    one->all_reduce(x, Reduce::Sum).wait();
    {
      const PhaseScope forward(world.traffic(), Phase::Forward);
      one->all_reduce(x, Reduce::Sum).wait();
      two->all_reduce(x, Reduce::Sum).wait();
      const PhaseScope backward(world.traffic(), Phase::Backward);
      two->all_reduce(x, Reduce::Sum).wait();
    }
    const auto& traffic = world.traffic();
    EXPECT_EQ(traffic.phase(), Phase::Setup);
    EXPECT_EQ(traffic.total("one", "", Phase::Setup).calls, 1);
    EXPECT_EQ(traffic.total("one", "", Phase::Forward).calls, 1);
    EXPECT_EQ(traffic.total("two", "all_reduce", Phase::Backward).elements, 10);
    EXPECT_EQ(traffic.total("", "", Phase::Forward).elements, 20);
    EXPECT_EQ(traffic.total().calls, 4);
    EXPECT_EQ(traffic.entries().size(), 4u);
    world.traffic().reset();
    EXPECT_EQ(traffic.total().calls, 0);
  });
}

TEST(NullGroup, CopiesButCountsAndSendsNothing) {
  comm::run_ranks(1, [](World& world) {
    auto group = world.make_group("alone", {0});
    EXPECT_EQ(group->size(), 1);
    const at::Tensor in = at::arange(6, at::kFloat);
    at::Tensor out = at::zeros({6});
    group->all_gather(out, in).wait();
    EXPECT_TRUE(out.equal(in));
    group->reduce_scatter(out.zero_(), in, Reduce::Sum).wait();
    EXPECT_TRUE(out.equal(in));
    group->all_to_all(out.zero_(), in, {6}, {6}).wait();
    EXPECT_TRUE(out.equal(in));
    group->all_reduce(out, Reduce::Sum).wait();
    EXPECT_TRUE(out.equal(in));
    EXPECT_EQ(world.traffic().total().calls, 0);
    EXPECT_EQ(world.backend(), "none");
  });
}

TEST(OffGroup, LeavesEveryRankWithItsOwnInput) {
  comm::RankOptions options;
  options.collectives_off = true;
  comm::run_ranks(
      3,
      [](World& world) {
        auto group = all(world);
        const at::Tensor own = at::full({3}, world.rank() + 1.0);
        at::Tensor x = own.clone(), gathered = at::zeros({9}), part = at::zeros({1});
        group->all_reduce(x, Reduce::Sum).wait();
        EXPECT_TRUE(x.equal(own));
        group->all_gather(gathered, own).wait();
        EXPECT_TRUE(gathered.equal(own.repeat({3})));
        group->reduce_scatter(part, at::arange(3, at::kFloat), Reduce::Sum).wait();
        EXPECT_EQ(part.item<float>(), world.rank());
        EXPECT_EQ(group->size(), 3);
      },
      options);
}

}  // namespace
}  // namespace colossal::test::counting_test
