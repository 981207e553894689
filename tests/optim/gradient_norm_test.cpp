// The gradient norm and clipping equal the norm and clipping of the logical gradient under every layout.
#include "colossal/optim/gradient_norm.h"

#include <cmath>
#include <limits>

#include "optim/trajectory.h"

namespace colossal::optim::gradient_norm_test {
namespace {

/// All logical gradients of step 1, concatenated.
at::Tensor whole_gradient() {
  nn::Parameters parameters({}, {at::kDouble, at::kCPU, 1});
  declare(parameters);
  std::vector<at::Tensor> all;
  for (const nn::Parameter& p : parameters) all.push_back(gradient_of(p.name, p.spec.shape, 1).view({-1}));
  return at::cat(all);
}

void on_every_layout(const std::function<void(RankState&, const Layout&)>& body) {
  for (const Layout& layout : layouts())
    comm::run_ranks(layout.data * layout.tensor, [&](comm::World& world) {
      RankState rank(world, layout);
      rank.set_gradients(1, 1);
      body(rank, layout);
    });
}

TEST(GradientNorm, EqualsTheLogicalGradients) {
  const at::Tensor whole = whole_gradient();
  const double two = whole.norm().item<double>(), most = whole.abs().max().item<double>();
  on_every_layout([&](RankState& rank, const Layout& layout) {
    EXPECT_NEAR(gradient_norm(rank.shards, rank.mesh), two, 1e-12 * two) << to_string(layout);
    EXPECT_EQ(gradient_norm(rank.shards, rank.mesh, NormOrder::Infinity), most) << to_string(layout);
  });
}

TEST(GradientNorm, SendsOneScalarInOneMessage) {
  comm::run_ranks(2, [](comm::World& world) {
    RankState rank(world, {2, 1, true});
    for (const NormOrder order : {NormOrder::Two, NormOrder::Infinity}) {
      gradient_norm(rank.shards, rank.mesh, order);  // the first use makes the group
      world.traffic().reset();
      gradient_norm(rank.shards, rank.mesh, order);
      EXPECT_EQ(world.traffic().total().calls, 1);
      EXPECT_EQ(world.traffic().total("", "all_reduce").elements, 1);
    }
  });
}

TEST(GradientNorm, BringsASumInTheSameMessage) {
  comm::run_ranks(3, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 3)});
    for (const NormOrder order : {NormOrder::Two, NormOrder::Infinity}) {
      const double own = world.rank() + 2.5, norm = joint_norm(own, mesh, order);
      world.traffic().reset();
      const NormAndSum both = joint_norm_and_sum(own, 10.0 * world.rank(), mesh, order);
      EXPECT_EQ(world.traffic().total().calls, 1);
      EXPECT_EQ(both.norm, norm);
      EXPECT_EQ(both.sum, 30);
      EXPECT_FALSE(std::isfinite(joint_norm_and_sum(world.rank() == 1 ? std::nan("") : 1, 1, mesh, order).norm));
    }
  });
}

TEST(GradientNorm, AcceptsRanksWithoutGradients) {
  comm::run_ranks(3, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 3)});
    nn::Parameters parameters(mesh.coordinates(), {at::kDouble, at::kCPU, 1});
    parameters.add("w", tensor::ShardSpec::whole({2}), nn::Init::zeros(), true);
    std::vector<memory::Shard> shards;
    if (mesh.index("data") == 0) {
      shards.push_back(make_shard(parameters));
      shards[0].lease()->gradients.copy_(at::tensor({3.0, -4.0}, at::kDouble));
    }
    EXPECT_DOUBLE_EQ(gradient_norm(shards, mesh), 5);
    EXPECT_DOUBLE_EQ(gradient_norm(shards, mesh, NormOrder::Infinity), 4);
  });
}

TEST(GradientNorm, IsNonFiniteOnAllRanksIfOneGradientIs) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()})
    on_every_layout([&](RankState& rank, const Layout& layout) {
      if (rank.mesh.index("data") == layout.data - 1) rank.shards[0].lease()->gradients[0] = bad;
      EXPECT_FALSE(std::isfinite(gradient_norm(rank.shards, rank.mesh, NormOrder::Infinity))) << to_string(layout);
      if (layout.zero || layout.data == 1) {
        EXPECT_FALSE(std::isfinite(gradient_norm(rank.shards, rank.mesh))) << to_string(layout);
      }
    });
}

TEST(GradientNorm, DetectsDoubleCountedReplicas) {
  const double two = whole_gradient().norm().item<double>();
  comm::run_ranks(2, [&](comm::World& world) {
    RankState rank(world, {2, 1, false});
    rank.set_gradients(1, 1);
    for (memory::Shard& shard : rank.shards) {
      std::vector<memory::Piece> pieces = shard.pieces();
      for (memory::Piece& piece : pieces) piece.part.counts = true;
      const memory::Shard twice(memory::Shard::Parts::of(shard.lease()->values), pieces);
      twice.lease()->gradients = shard.lease()->gradients;
      shard = twice;
    }
    EXPECT_GT(gradient_norm(rank.shards, rank.mesh), 1.01 * two);
  });
}

TEST(Clipping, KeepsTheDirectionByNorm) {
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 0.25);
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 0), 1);
}

TEST(Clipping, ClampsElementsByValue) {
  const at::Tensor whole = whole_gradient();
  on_every_layout([&](RankState& rank, const Layout& layout) {
    clip_by_value(rank.shards, 0.5);
    EXPECT_NEAR(gradient_norm(rank.shards, rank.mesh), whole.clamp(-0.5, 0.5).norm().item<double>(), 1e-10)
        << to_string(layout);
    EXPECT_EQ(gradient_norm(rank.shards, rank.mesh, NormOrder::Infinity), 0.5);
  });
  EXPECT_THROW(clip_by_value({}, 0), Error);
}

}  // namespace
}  // namespace colossal::optim::gradient_norm_test
