// Compares the collectives with autograd with the same computation on one process, and checks their traffic.
#include "colossal/comm/collectives.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "support/ranks_values.h"
#include "support/thrown_message.h"

namespace colossal::test::collectives_test {
namespace {

using comm::World;

std::shared_ptr<comm::Group> all(World& world) {
  std::vector<int> ranks(world.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.make_group("tensor", ranks);
}

/// Integers in doubles: every sum is exact, so results are compared bitwise.
at::Tensor values(std::vector<int64_t> sizes, int seed) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  return (at::arange(numel, at::kDouble) * 3 + seed).fmod(11).view(sizes);
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(); }

class Pairs : public testing::TestWithParam<int> {
 protected:
  void on_each_rank(const std::function<void(World&, comm::Group&)>& fn) {
    comm::run_ranks(GetParam(), [&](World& world) { fn(world, *all(world)); });
  }
};

TEST_P(Pairs, ReduceFromAddsUpPartialProducts) {
  const int n = GetParam();
  // y = x A, x split by columns and A by rows: one process is compared with n.
  const at::Tensor x = values({5, 2 * n}, 1), a = values({2 * n, 3}, 3), dy = values({5, 3}, 4);
  const at::Tensor whole_x = leaf(x), whole_a = leaf(a);
  const at::Tensor whole_y = whole_x.mm(whole_a);
  whole_y.backward(dy);
  on_each_rank([&](World& world, comm::Group& group) {
    const int r = world.rank();
    const at::Tensor own_x = leaf(x.narrow(1, 2 * r, 2)), own_a = leaf(a.narrow(0, 2 * r, 2));
    const at::Tensor y = comm::reduce_from(own_x.mm(own_a), group);
    y.backward(dy);
    EXPECT_TRUE(same_bits(y, whole_y));
    EXPECT_TRUE(same_bits(own_x.grad(), whole_x.grad().narrow(1, 2 * r, 2)));
    EXPECT_TRUE(same_bits(own_a.grad(), whole_a.grad().narrow(0, 2 * r, 2)));
    EXPECT_EQ(world.traffic().total("tensor", "all_reduce").calls, n == 1 ? 0 : 1);
    EXPECT_EQ(world.traffic().total().elements, n == 1 ? 0 : 2.0 * (n - 1) * (5 * 3) / n);
  });
}

TEST_P(Pairs, GatherFromReturnsTheSliceOfEachRank) {
  const int n = GetParam();
  const at::Tensor x = values({4, 3 * n, 2}, 1), weight = values({4, 3 * n, 2}, 5), dy = values({4, 3 * n, 2}, 7);
  for (int64_t dim : {1, -2}) {
    on_each_rank([&](World& world, comm::Group& group) {
      const auto own_part = [&](const at::Tensor& whole) { return whole.narrow(1, 3 * world.rank(), 3); };
      const at::Tensor own = leaf(own_part(x));
      const at::Tensor y = comm::gather_from(own * own_part(weight), dim, group);
      EXPECT_TRUE(same_bits(y, x * weight));
      y.backward(dy);
      EXPECT_TRUE(same_bits(own.grad(), own_part(dy * weight)));
    });
  }
}

TEST_P(Pairs, AllGatherSumsTheGradientsOfAllRanks) {
  const int n = GetParam();
  const at::Tensor x = values({2 * n, 3}, 1);
  at::Tensor weights = at::zeros({2 * n, 3}, at::kDouble);
  for (int r = 0; r < n; ++r) weights += values({2 * n, 3}, r);
  on_each_rank([&](World& world, comm::Group& group) {
    const at::Tensor own = leaf(x.narrow(0, 2 * world.rank(), 2));
    const at::Tensor whole = comm::all_gather(own, 0, group);
    EXPECT_TRUE(same_bits(whole, x));
    (whole * values({2 * n, 3}, world.rank())).sum().backward();
    EXPECT_TRUE(same_bits(own.grad(), weights.narrow(0, 2 * world.rank(), 2)));
  });
}

TEST_P(Pairs, ReduceScatterGathersItsGradient) {
  const int n = GetParam();
  at::Tensor sum = at::zeros({3, 2 * n}, at::kDouble);
  for (int r = 0; r < n; ++r) sum += values({3, 2 * n}, r);
  const at::Tensor dy = values({3, 2 * n}, 9);
  on_each_rank([&](World& world, comm::Group& group) {
    const at::Tensor own = leaf(values({3, 2 * n}, world.rank()));
    const at::Tensor part = comm::reduce_scatter(own, 1, group);
    EXPECT_TRUE(same_bits(part, sum.narrow(1, 2 * world.rank(), 2)));
    part.backward(dy.narrow(1, 2 * world.rank(), 2));
    EXPECT_TRUE(same_bits(own.grad(), dy));
  });
}

TEST_P(Pairs, AcceptsNonContiguousTensors) {
  const int n = GetParam();
  const at::Tensor x = values({2 * n, 4}, 3);
  on_each_rank([&](World&, comm::Group& group) {
    EXPECT_TRUE(same_bits(comm::reduce_from(x.t(), group), x.t() * n));
    EXPECT_TRUE(same_bits(comm::reduce_scatter(x.t(), 1, group), (x.t() * n).narrow(1, 2 * group.rank(), 2)));
    EXPECT_TRUE(same_bits(comm::all_gather(x.narrow(0, 2 * group.rank(), 2).t(), 1, group), x.t()));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Pairs, testing::Values(1, 2, 3, 4, 8));

TEST(Pairs, RefusesDimensionsThatDoNotDivide) {
  comm::run_ranks(2, [](World& world) {
    auto group = all(world);
    const at::Tensor x = at::zeros({3, 5});
    EXPECT_THAT(thrown_message([&] { comm::reduce_scatter(x, 0, *group); }),
                testing::HasSubstr("needs a dimension divisible by the 2 ranks of group \"tensor\": got size 3 along "
                                   "dimension 0"));
    EXPECT_THAT(thrown_message([&] { comm::reduce_scatter(x, 1, *group); }), testing::HasSubstr("got size 5"));
    EXPECT_THAT(thrown_message([&] { comm::all_gather(x, 2, *group); }),
                testing::HasSubstr("a dimension of its input"));
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

}  // namespace
}  // namespace colossal::test::collectives_test
