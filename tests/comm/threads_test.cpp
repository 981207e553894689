// The shared-memory algorithm on threads: every collective is compared with values that one rank can compute alone.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

#include "colossal/comm/run_ranks.h"
#include "support/ranks_conformance.h"
#include "support/ranks_values.h"

namespace colossal::test::threads_test {
namespace {

using comm::World;

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class Threads : public testing::TestWithParam<int> {
 protected:
  void on_each_rank(const std::function<void(comm::Group&)>& check) {
    comm::run_ranks(GetParam(), [&](World& world) { check(*world.make_group("all", all_ranks(world))); });
  }
};

TEST_P(Threads, ReducesAndGathersEveryDtype) {
  for (int64_t numel : {0, 1, 7, 1000, 40001}) {
    SCOPED_TRACE(numel);
    EXPECT_NO_THROW(on_each_rank([&](comm::Group& group) { check_every_dtype(group, numel); }));
  }
}

TEST_P(Threads, RunsEveryCollectiveFromNothingToManyPieces) {
  for (int64_t numel : {0, 3, 1025, 70001}) {
    SCOPED_TRACE(numel);
    EXPECT_NO_THROW(on_each_rank([&](comm::Group& group) { check_every_collective(group, numel); }));
  }
}

TEST_P(Threads, ExchangesUnevenRows) {
  EXPECT_NO_THROW(on_each_rank([](comm::Group& group) { check_uneven_exchange(group); }));
}

TEST_P(Threads, SendsBeforeReceivingAtAnySize) {
  EXPECT_NO_THROW(on_each_rank([](comm::Group& group) {
    for (int64_t numel : {0, 5, 20000, 500000}) check_send_and_recv(group, numel);
  }));
}

TEST_P(Threads, KeepsTheOrderOfAsynchronousCalls) {
  EXPECT_NO_THROW(on_each_rank([](comm::Group& group) { check_issue_order(group); }));
}

TEST_P(Threads, GivesAllRanksTheSameBits) {
  EXPECT_NO_THROW(on_each_rank([](comm::Group& group) {
    for (int64_t numel : {17, 5000, 150001}) check_equal_bits_on_all_ranks(group, numel);
  }));
}

TEST_P(Threads, AddsInRankOrderAtAnySizeAndPlace) {
  EXPECT_NO_THROW(on_each_rank([](comm::Group& group) {
    for (int64_t numel : {1, 2, 1000, 150001}) check_sums_in_rank_order(group, numel);
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Threads, testing::Values(1, 2, 3, 4, 8));

TEST(AllReduce, AccumulatesHalfPrecisionInSinglePrecision) {
  // 256 + 1 + 1 is 256 in bf16 when rounded after each term, 258 when rounded once.
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const double big = dtype == at::kHalf ? 2048 : 256;
    comm::run_ranks(3, [&](World& world) {
      auto group = world.make_group("all", all_ranks(world));
      for (int64_t numel : {4, 100000}) {
        at::Tensor x = at::full({numel}, world.rank() == 0 ? big : 1.0, dtype);
        group->all_reduce(x, comm::Reduce::Sum).wait();
        EXPECT_TRUE(same_bits(x, at::full({numel}, big + 2, dtype)));
      }
    });
  }
}

TEST(AllReduce, PassesNanThroughMaxAndMin) {
  comm::run_ranks(2, [&](World& world) {
    auto group = world.make_group("all", all_ranks(world));
    for (comm::Reduce op : {comm::Reduce::Max, comm::Reduce::Min}) {
      at::Tensor x = at::tensor({1.0, 2.0});
      x[world.rank()] = std::nan("");
      group->all_reduce(x, op).wait();
      EXPECT_TRUE(x.isnan().all().item<bool>());
    }
  });
}

TEST(ManyGroups, StayIndependentDespiteEqualNamesOrRanks) {
  comm::run_ranks(4, [&](World& world) {
    const int half = world.rank() / 2;
    auto pair = world.make_group("pair", {2 * half, 2 * half + 1});
    auto again = world.make_group("pair", {2 * half, 2 * half + 1});
    auto all = world.make_group("all", all_ranks(world));
    at::Tensor a = at::ones({100000}), b = at::full({100000}, 2.0), c = at::ones({3});
    auto work_a = pair->all_reduce(a, comm::Reduce::Sum), work_b = again->all_reduce(b, comm::Reduce::Sum);
    all->all_reduce(c, comm::Reduce::Sum).wait();
    work_b.wait();
    work_a.wait();
    EXPECT_TRUE(a.eq(2).all().item<bool>());
    EXPECT_TRUE(b.eq(4).all().item<bool>());
    EXPECT_TRUE(c.eq(4).all().item<bool>());
  });
}

TEST(ManyGroups, KeepTheOrderOfTheirRanks) {
  comm::run_ranks(3, [&](World& world) {
    auto group = world.make_group("reversed", {2, 1, 0});
    EXPECT_EQ(group->rank(), 2 - world.rank());
    const at::Tensor own = at::full({1}, world.rank(), at::kLong);
    at::Tensor all = at::empty({3}, at::kLong);
    group->all_gather(all, own).wait();
    EXPECT_TRUE(all.equal(at::tensor({2, 1, 0}, at::kLong)));
  });
}

}  // namespace
}  // namespace colossal::test::threads_test
