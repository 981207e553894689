// Events of a step are priced by the cluster: products, attention, links inside a node and between nodes.
#include "colossal/plan/cluster_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "colossal/base/error.h"

namespace colossal::plan::cluster_costs_test {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr uint8_t kBf16 = 15, kFp32 = 6;  // c10::ScalarType
constexpr uint8_t kAllReduce = 0;         // comm::Collective

/// A few sums and products in double: each rounds by at most half of epsilon.
constexpr double kRounding = 8 * std::numeric_limits<double>::epsilon();

void expect_seconds(double seconds, double by_hand) { EXPECT_NEAR(seconds, by_hand, kRounding * by_hand); }

/// 1 GB/s and 1 ms inside a node of 4, 100 MB/s and 10 ms between nodes; 4e9 operations/s in bf16, half of it reached.
Cluster cluster_of_round_numbers() {
  Profile profile;
  profile.name = "round";
  profile.device.memory = 1000;
  profile.device.bandwidth = 1e9;
  profile.device.bf16 = 4e9;
  profile.device.fp32 = 1e9;
  profile.device.efficiency = 0.5;
  profile.device.start = 1e-3;
  profile.node = {4, 1e9, 1e-3};
  profile.network = {1e8, 1e-2, 1};
  profile.disk = {2e9, 1e9, 0};
  return Cluster(profile);
}

TEST(ClusterCosts, PricesProductsByTheirDtype) {
  const Cluster cluster = cluster_of_round_numbers();
  const ClusterCosts costs(cluster);
  StepEvent product{.kind = StepEvent::Kind::Product, .dtype = kBf16, .m = 1000, .n = 1000, .k = 1000};
  product.operations = 2e9;
  expect_seconds(costs.product_seconds(product), 1e-3 + 1);
  product.dtype = kFp32;
  expect_seconds(costs.product_seconds(product), 1e-3 + 4);
}

TEST(ClusterCosts, PricesSeveralMatricesAndUnknownShapes) {
  const Cluster cluster = cluster_of_round_numbers();
  const ClusterCosts costs(cluster);
  StepEvent product{.kind = StepEvent::Kind::Product, .dtype = kBf16, .m = 1000, .n = 1000, .k = 1000};
  product.operations = 3 * 2e9;  // three products of one shape
  expect_seconds(costs.product_seconds(product), 3 * (1e-3 + 1));
  const StepEvent unknown{.kind = StepEvent::Kind::Product, .dtype = kBf16, .operations = 2e9};
  expect_seconds(costs.product_seconds(unknown), 1e-3 + 1);
  StepEvent attention = unknown;
  attention.kind = StepEvent::Kind::Attention;
  expect_seconds(costs.attention_seconds(attention), 1e-3 + 1);
  expect_seconds(costs.elementwise_seconds(1e9), 1e-3 + 1);
}

TEST(ClusterCosts, TellsLinksApart) {
  const Cluster cluster = cluster_of_round_numbers();
  const ClusterCosts costs(cluster);
  const GroupPlace inside = costs.place_of({4, 5}), between = costs.place_of({3, 4});
  EXPECT_EQ(inside, (GroupPlace{.link = kNodeLink, .ranks = 2, .nodes = 1}));
  EXPECT_EQ(between, (GroupPlace{.link = kNetworkLink, .ranks = 2, .nodes = 2}));
  const StepEvent message{.collective = StepEvent::kSend, .dtype = kBf16, .bytes = 1e8};
  expect_seconds(costs.call_seconds(message, inside), 1e-3 + 0.1);
  expect_seconds(costs.call_seconds(message, between), 1e-2 + 1);
  // Two ranks of a node: a ring sends the bytes of the whole tensor once, in two messages; `direct` takes one.
  const StepEvent reduction{.collective = kAllReduce, .dtype = kBf16, .bytes = 1e8};
  expect_seconds(costs.call_seconds(reduction, inside), 1e-3 + 0.1);
}

/// Four ranks of a node write 1 GB each at 1 GB/s.
TEST(ClusterCosts, CountsTheSlowerSideOfADisk) {
  const Cluster cluster = cluster_of_round_numbers();
  expect_seconds(ClusterCosts(cluster).disk_seconds(1e9), 4);
}

TEST(ClusterCosts, RefusesUnknownCollectives) {
  const Cluster cluster = cluster_of_round_numbers();
  const ClusterCosts costs(cluster);
  const StepEvent unknown{.collective = 99, .bytes = 1};
  EXPECT_THAT([&] { costs.call_seconds(unknown, {.link = kNodeLink, .ranks = 2, .nodes = 1}); },
              ThrowsMessage<Error>(HasSubstr("got code 99")));
}

}  // namespace
}  // namespace colossal::plan::cluster_costs_test
