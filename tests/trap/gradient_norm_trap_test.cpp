// The norm of gradients on trap devices. It must equal the norm on the CPU, with one launch per shard.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "colossal/comm/run_ranks.h"
#include "colossal/optim/gradient_norm.h"
#include "optim/trajectory.h"
#include "support/trap_device.h"

namespace colossal::optim::gradient_norm_trap_test {
namespace {

class GradientNormOnTrap : public testing::Test {
 protected:
  static void SetUpTestSuite() { test::trap_device(); }
};

/// A counter of the norms that this thread launches while it lives.
class Launches {
 public:
  Launches() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&note))) { count() = 0; }
  ~Launches() { at::removeCallback(handle_); }
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;
  static int& count() {
    thread_local int launches = 0;
    return launches;
  }

 private:
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& fn) {
    if (std::string_view(fn.name()) == "aten::_foreach_norm") ++count();
    return nullptr;
  }
  at::CallbackHandle handle_;
};

TEST_F(GradientNormOnTrap, EqualsTheCpuInOneLaunchPerShard) {
  for (const auto type : {at::kDouble, at::kBFloat16})
    for (const Layout& layout : layouts())
      comm::run_ranks(layout.data * layout.tensor, [&](comm::World& world) {
        RankState rank(world, layout);
        rank.set_gradients(1, 1);
        const at::Device device = test::trap_device(world.local_rank());
        double want[2], elements = 0;
        int with_pieces = 0, with_counted = 0;  // numbers of shards; a replica's part of a small shard may be empty
        for (memory::Shard& shard : rank.shards) {
          shard.lease()->gradients = shard.lease()->gradients.to(type).to(at::kDouble);  // rounds, so that values agree
          elements += static_cast<double>(shard.length());
          const auto counts = [&](const memory::Piece& piece) {
            return !memory::counted_parts(shard.lease()->gradients, piece, rank.mesh.coordinates()).empty();
          };
          with_pieces += shard.pieces().empty() ? 0 : 1;
          with_counted += std::any_of(shard.pieces().begin(), shard.pieces().end(), counts) ? 1 : 0;
        }
        for (const NormOrder order : {NormOrder::Two, NormOrder::Infinity})
          want[order == NormOrder::Two] = gradient_norm(rank.shards, rank.mesh, order);
        for (memory::Shard& shard : rank.shards)
          shard.lease()->gradients = shard.lease()->gradients.to(type).to(device);
        for (const NormOrder order : {NormOrder::Two, NormOrder::Infinity}) {
          const std::string what = concat(to_string(layout), ", ", type, order == NormOrder::Two ? ", two" : ", most");
          const double number = want[order == NormOrder::Two];
          const Launches launches;
          const test::TrapWaits waits(device);
          const double rounding = order == NormOrder::Two ? elements * std::numeric_limits<double>::epsilon() : 0;
          EXPECT_NEAR(gradient_norm(rank.shards, rank.mesh, order), number, rounding * number) << what;
          EXPECT_EQ(Launches::count(), order == NormOrder::Two ? with_counted : with_pieces) << what;
          EXPECT_LE(waits.counts().waits(), 1) << what << ": " << waits.counts();
        }
      });
}

TEST_F(GradientNormOnTrap, PropagatesGradientsThatAreNotFinite) {
  comm::run_ranks(1, [&](comm::World& world) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()})
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        RankState rank(world, {});
        rank.set_gradients(1, 1);
        at::Tensor gradients = rank.shards[1].lease()->gradients.to(type);
        gradients[3] = bad;
        rank.shards[1].lease()->gradients = gradients.to(test::trap_device());
        rank.shards[0].lease()->gradients = rank.shards[0].lease()->gradients.to(type).to(test::trap_device());
        for (const NormOrder order : {NormOrder::Two, NormOrder::Infinity})
          EXPECT_FALSE(std::isfinite(gradient_norm(rank.shards, rank.mesh, order))) << bad << " " << type;
      }
  });
}

TEST_F(GradientNormOnTrap, JoinsShardsOfTheHostAndOfTheDevice) {
  comm::run_ranks(1, [&](comm::World& world) {
    for (const size_t there : {0, 1})
      for (const NormOrder order : {NormOrder::Two, NormOrder::Infinity}) {
        RankState rank(world, {});
        rank.set_gradients(1, 1);
        ASSERT_GE(rank.shards.size(), 2);
        double elements = 0;
        for (const memory::Shard& shard : rank.shards) elements += static_cast<double>(shard.length());
        const double want = gradient_norm(rank.shards, rank.mesh, order);
        const memory::Shard& moved = rank.shards[there];
        moved.lease()->gradients = moved.lease()->gradients.to(test::trap_device());
        const test::TrapWaits waits(test::trap_device());
        EXPECT_NEAR(gradient_norm(rank.shards, rank.mesh, order), want,
                    elements * std::numeric_limits<double>::epsilon() * want);
        EXPECT_LE(waits.counts().waits(), 1) << waits.counts();
        rank.shards[1 - there].lease()->gradients[3] = std::nan("");
        EXPECT_FALSE(std::isfinite(gradient_norm(rank.shards, rank.mesh, order)));
      }
  });
}

}  // namespace
}  // namespace colossal::optim::gradient_norm_trap_test
