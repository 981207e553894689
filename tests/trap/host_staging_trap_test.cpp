// Transfers between devices through the host: the number of copies, and that autograd does not record them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/group.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "support/trap_device.h"

namespace colossal::test::host_staging_trap_test {
namespace {

class HostStagingOnTrap : public testing::Test {
 protected:
  static void SetUpTestSuite() { trap_device(); }
};

TEST_F(HostStagingOnTrap, CopiesInputsAndOutputs) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", 2)});
    comm::Group& group = mesh.group("data");
    const at::Device device = trap_device(world.local_rank());
    at::Tensor x = at::full({5}, 1.0f + static_cast<float>(world.rank()), device);
    const TrapWaits sum(device);
    group.all_reduce(x, comm::Reduce::Sum).wait();
    EXPECT_EQ(sum.counts().bytes_to_host, 20);
    EXPECT_EQ(sum.counts().bytes_to_device, 20);
    EXPECT_TRUE(at::equal(peek(x), at::full({5}, 3.f)));
    x.fill_(world.rank());
    const TrapWaits broadcast(device);
    const auto version = x._version();
    group.broadcast(x, 1).wait();
    EXPECT_EQ(broadcast.counts().bytes_to_host, world.rank() == 1 ? 20 : 0);
    EXPECT_EQ(broadcast.counts().bytes_to_device, world.rank() == 1 ? 0 : 20);
    EXPECT_EQ(x._version(), version) << "other transports write bytes, of which autograd does not know";
    EXPECT_TRUE(at::equal(peek(x), at::ones({5})));
  });
}

TEST_F(HostStagingOnTrap, ConnectsEveryGroupByOneElement) {
  comm::run_ranks(2, [](comm::World& world) {
    comm::Mesh mesh(world, {{"pipeline", 2}, {"data", 1}});
    mesh.one_way("pipeline", 0, 1);
    mesh.group("pipeline");
    mesh.group("data");
    mesh.one_way("pipeline", 1, 0);
    mesh.connect(trap_device(world.local_rank()));
    const auto calls = [&](const char* collective) { return world.traffic().total("pipeline", collective).calls; };
    EXPECT_EQ(calls("all_reduce"), 1);
    EXPECT_EQ(calls("send"), 1);
    EXPECT_EQ(calls("recv"), 1);
    EXPECT_EQ(world.traffic().total("pipeline", "send").elements, 1);
    mesh.connect(at::kCPU);
    EXPECT_EQ(world.traffic().total("pipeline").calls, 3);
  });
}

}  // namespace
}  // namespace colossal::test::host_staging_trap_test
