// The numbers of a mesh on a cluster.
#include "colossal/plan/links.h"

#include <gtest/gtest.h>

#include "colossal/plan/cluster.h"

namespace colossal::plan::links_test {
namespace {

// A ring of N ranks takes (N - 1) latencies and sends its bytes once.
TEST(Links, EqualTheNodeOrTheNetwork) {
  const Cluster cluster(find_profile("h100-8x"));
  const NodeProfile& node = cluster.profile().node;
  const NetworkProfile& network = cluster.profile().network;
  const Links links = links_of(cluster, parse_mesh("data=2,tensor=8"));
  ASSERT_EQ(links.axes.size(), 2u);
  EXPECT_NEAR(links.axes[1].bandwidth / node.bandwidth, 1, 1e-6);
  EXPECT_NEAR(links.axes[1].latency / node.latency, 1, 1e-3);
  EXPECT_NEAR(links.axes[0].bandwidth * network.oversubscription / network.bandwidth, 1, 1e-6);
  EXPECT_NEAR(links.axes[0].latency / network.latency, 1, 1e-3);
  EXPECT_EQ(links.operations, cluster.peak(NumberType::Bf16) * cluster.profile().device.efficiency);
}

TEST(Links, UseNodesForNeighboursAlone) {
  const Cluster cluster(find_profile("h100-8x"));
  const Links inside = links_of(cluster, parse_mesh("tensor=4,data=2"));
  EXPECT_NEAR(inside.axes[0].bandwidth / inside.axes[1].bandwidth, 1, 1e-6) << "eight ranks are one node";
  const Links across = links_of(cluster, parse_mesh("tensor=8,data=8"));
  EXPECT_LT(across.axes[0].bandwidth, across.axes[1].bandwidth / 2);
}

}  // namespace
}  // namespace colossal::plan::links_test
