// Whole matrices assigned to ranks: the work of each rank, the results on all ranks, and the prefetched shards.
#include "colossal/optim/owner_computes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "support/counting_store.h"

namespace colossal::optim::owner_computes_test {
namespace {

constexpr int kRanks = 2;

// One matrix of cost 8 and eight of cost 1, all in one window. Assigned round-robin, one rank would have work of 12.
TEST(OwnerComputes, BalancesTheWorkOfRanks) {
  std::vector<double> done(kRanks);
  comm::run_ranks(kRanks, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", kRanks)});
    std::vector<OwnerComputes::Matrix> matrices{{.shape = {8, 1}, .result = {1}, .cost = 8}};
    for (int i = 0; i < 8; ++i) matrices.push_back({.shape = {1, 1}, .result = {1}, .cost = 1});
    const OwnerComputes owners(mesh.all(), matrices);
    std::vector<double> results(matrices.size());
    world.traffic().reset();
    owners.run({}, at::kDouble,
               {.needs = {},
                .collect = [](size_t k, const at::Tensor& whole, const auto&) { whole.fill_(static_cast<double>(k)); },
                .compute =
                    [&](size_t k, const at::Tensor& whole) {
                      done[world.rank()] += matrices[k].cost;
                      return whole.sum().view({1});
                    },
                .hand_out = [&](size_t k, const at::Tensor& all, const auto&) { results[k] = all.item<double>(); }});
    EXPECT_EQ(world.traffic().total().calls, 2 * kRanks) << "a reduce and a broadcast for each owner";
    for (size_t k = 0; k < results.size(); ++k)
      EXPECT_EQ(results[k], static_cast<double>(kRanks * k) * matrices[k].cost) << "matrix " << k;
  });
  EXPECT_EQ(done, (std::vector<double>{8, 8}));
}

// Two windows of two matrices, each of which has a shard; the second window uses one shard of the first.
TEST(OwnerComputes, PrefetchesShardsOfTheNextWindow) {
  comm::run_ranks(kRanks, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", kRanks)});
    const auto offload = std::make_shared<test::CountingStore>();
    std::vector<memory::Shard> shards;
    for (int i = 0; i < 3; ++i)
      shards.emplace_back(memory::Shard::Parts::of(at::zeros({4}, at::kDouble), offload), std::vector<memory::Piece>());
    std::vector<OwnerComputes::Matrix> matrices;
    for (const size_t shard : {0, 1, 1, 2})
      matrices.push_back({.shape = {2, 2}, .result = {1}, .cost = 1, .shards = {shard}});
    const OwnerComputes owners(mesh.all(), matrices);
    owners.run(shards, at::kDouble,
               {.needs = {.values = memory::Access::Read},
                .collect =
                    [&](size_t k, const at::Tensor&, const auto& leases) {
                      EXPECT_EQ(offload->counts[2].prefetches, 1) << "from the first window on";
                      EXPECT_EQ(offload->counts[2].borrows, k < 2 ? 0 : 1);
                      EXPECT_EQ(leases.count(matrices[k].shards[0]), 1u);
                    },
                .compute = [](size_t, const at::Tensor& whole) { return whole.sum().view({1}); },
                .hand_out = [](size_t, const at::Tensor&, const auto&) {}});
    for (const size_t leased : {0, 1}) EXPECT_EQ(offload->counts[leased].prefetches, 0) << "shard " << leased;
    EXPECT_EQ(offload->borrows(), 3) << "the shard of both windows once";
  });
}

}  // namespace
}  // namespace colossal::optim::owner_computes_test
