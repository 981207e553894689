// Seconds of collectives, products, operators and copies, against values computed by hand.
#include "colossal/plan/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::plan::cluster_test {
namespace {

using ::testing::HasSubstr;

/// Sums of a few terms in double: the rounding of each is below half of epsilon, relative to the sum.
constexpr double kRounding = 16 * std::numeric_limits<double>::epsilon();

/// Values of a grid pass through logarithms up to ln(1e10) < 24, so an error of epsilon there is 24 of it in the value.
constexpr double kGridRounding = 24 * kRounding;

void expect_seconds(double seconds, double by_hand) { EXPECT_NEAR(seconds, by_hand, kRounding * by_hand); }

void expect_interpolated(double value, double by_hand) { EXPECT_NEAR(value, by_hand, kGridRounding * by_hand); }

/// Round numbers: 1 GB/s and 1 ms inside a node of 4, 100 MB/s and 10 ms between nodes.
Profile round_numbers() {
  Profile profile;
  profile.name = "round";
  profile.device.memory = 1000;
  profile.device.reserve = 200;
  profile.device.bandwidth = 1e9;
  profile.device.bf16 = 4e9;
  profile.device.efficiency = 0.5;
  profile.device.start = 1e-3;
  profile.node = {4, 1e9, 1e-3};
  profile.network = {1e8, 1e-2, 1};
  return profile;
}

std::string fault_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "cluster");
    return error.message();
  }
  return "";
}

TEST(Cluster, PricesCollectivesInsideANode) {
  const Cluster cluster(round_numbers());
  const RankSpan four{4, 1};
  // n = 1e9 bytes take 1 s on a link. all_reduce: ring 6 ms + 1.5 s, tree 4 ms + 2 s, direct 1 ms + 3 s.
  expect_seconds(cluster.collective_seconds(Collective::AllReduce, 1.5e9, four), 6e-3 + 1.5);
  expect_seconds(cluster.collective_seconds(Collective::AllGather, 0.75e9, four), 3e-3 + 0.75);
  expect_seconds(cluster.collective_seconds(Collective::ReduceScatter, 0.75e9, four), 3e-3 + 0.75);
  expect_seconds(cluster.collective_seconds(Collective::AllToAll, 0.75e9, four), 3e-3 + 0.75);
  expect_seconds(cluster.collective_seconds(Collective::Send, 1e9, four), 1e-3 + 1);
  expect_seconds(cluster.collective_seconds(Collective::Recv, 1e9, four), 1e-3 + 1);
  expect_seconds(cluster.collective_seconds(Collective::Barrier, 0, four), 1e-3);
  EXPECT_EQ(cluster.collective_seconds(Collective::AllReduce, 0, {1, 1}), 0);
}

TEST(Cluster, ChoosesTheAlgorithmOfAnAllReduceByItsSize) {
  const Cluster cluster(round_numbers(), 4);
  // n = 4,000 bytes: direct 1 ms + 12 us; ring 6 ms + 6 us; tree 4 ms + 8 us.
  expect_seconds(cluster.collective_seconds(Collective::AllReduce, 6000, {4, 1}), 1e-3 + 12e-6);
  // 16 ranks and n = 1e6 bytes: ring 30 ms + 1.875 ms; tree 8 ms + 2 ms; direct 1 ms + 15 ms.
  Profile wide = round_numbers();
  wide.node.devices = 16;
  expect_seconds(Cluster(wide).collective_seconds(Collective::AllReduce, 1.875e6, {16, 1}), 8e-3 + 2e-3);
}

TEST(Cluster, PricesBroadcastsByTreeOrChain) {
  const Cluster cluster(round_numbers());
  // Tree: log2(4) = 2 steps. n = 0: 2 ms; the chain needs 3 hops.
  expect_seconds(cluster.collective_seconds(Collective::Broadcast, 0, {4, 1}), 2e-3);
  // n = 2e9 takes 2 s, and a hop 1 ms: the best number of pieces is sqrt(2 * 2 / 1e-3) = 63.2, so 63 or 64.
  const double at63 = (2 + 63) * (1e-3 + 2.0 / 63), at64 = (2 + 64) * (1e-3 + 2.0 / 64);
  expect_seconds(cluster.collective_seconds(Collective::Broadcast, 1.5e9, {4, 1}), std::min(at63, at64));
  expect_seconds(cluster.collective_seconds(Collective::Reduce, 1.5e9, {4, 1}), std::min(at63, at64));
  // Two ranks: one message.
  expect_seconds(cluster.collective_seconds(Collective::Broadcast, 0.5e9, {2, 1}), 1e-3 + 1);
}

TEST(Cluster, NestsCollectivesOfSeveralNodes) {
  const Cluster cluster(round_numbers());
  const RankSpan eight{8, 2};  // 4 ranks on each of 2 nodes
  // all_reduce of n = 8e8 sends 2 * 7/8 n = 1.4e9. In the node reduce_scatter and all_gather send 3/4 n each: 0.6 s.
  // Between 2 nodes all_reduce of n/4 = 2e8, 2 s on the link: ring 20 ms + 2 s, direct 10 ms + 2 s.
  expect_seconds(cluster.collective_seconds(Collective::AllReduce, 1.4e9, eight), 2 * (3e-3 + 0.6) + 10e-3 + 2);
  // all_gather: 3/4 n inside, half of n/4 between.
  expect_seconds(cluster.collective_seconds(Collective::AllGather, 0.7e9, eight), 3e-3 + 0.6 + 10e-3 + 1);
  // all_to_all: n/8 = 1e8 bytes to each rank: 3 messages of 0.1 s inside, 4 of 1 s between.
  expect_seconds(cluster.collective_seconds(Collective::AllToAll, 0.7e9, eight), 3 * (1e-3 + 0.1) + 4 * (10e-3 + 1));
  expect_seconds(cluster.collective_seconds(Collective::Send, 1e8, {2, 2}), 10e-3 + 1);
  // One rank on each of 2 nodes: no part inside.
  expect_seconds(cluster.collective_seconds(Collective::AllGather, 0.5e8, {2, 2}), 10e-3 + 0.5);
}

TEST(Cluster, DividesTheNetworkByOversubscriptionAndSharers) {
  Profile profile = round_numbers();
  profile.network.oversubscription = 4;
  expect_seconds(Cluster(profile).collective_seconds(Collective::Send, 1e8, {2, 2}), 10e-3 + 4);
  expect_seconds(Cluster(profile).collective_seconds(Collective::Send, 1e8, {2, 2}, 3), 10e-3 + 12);
  expect_seconds(Cluster(profile).collective_seconds(Collective::Send, 1e8, {2, 1}, 3), 1e-3 + 0.3);
}

TEST(Cluster, NeverSlowsDownWithMoreBandwidth) {
  for (const auto& name : named_profiles()) {
    Profile twice = find_profile(name);
    if (twice.node.devices == 1) continue;  // a single card, without links
    const Cluster before(twice);
    twice.network.bandwidth *= 2;
    const Cluster after(twice);
    for (int code = 0; code <= static_cast<int>(Collective::Barrier); ++code)
      for (const double sent : {0.0, 1e3, 1e6, 1e9}) {
        const auto collective = static_cast<Collective>(code);
        for (const RankSpan span : {RankSpan{8, 1}, RankSpan{8, 8}, RankSpan{64, 8}, RankSpan{12, 2}})
          EXPECT_LE(after.collective_seconds(collective, sent, span),
                    before.collective_seconds(collective, sent, span));
      }
  }
}

TEST(Cluster, CountsTheNodesOfAGroup) {
  const Cluster cluster(round_numbers());
  EXPECT_EQ(cluster.span_of({0, 1, 2, 3}), (RankSpan{4, 1}));
  EXPECT_EQ(cluster.span_of({0, 4, 8, 12}), (RankSpan{4, 4}));
  EXPECT_EQ(cluster.span_of({6, 5, 3, 2}), (RankSpan{4, 2}));
  EXPECT_EQ(Cluster(round_numbers(), 2).span_of({0, 1, 2, 3}), (RankSpan{4, 2}));
}

TEST(Cluster, ConvertsBetweenSentAndWholeBytes) {
  EXPECT_EQ(sent_bytes(Collective::AllReduce, 497759232, 2), 497759232);  // 2 * (2 - 1) / 2 of it
  EXPECT_EQ(sent_bytes(Collective::AllGather, 1000, 4), 750);
  EXPECT_EQ(sent_bytes(Collective::Send, 1000, 4), 1000);
  EXPECT_EQ(sent_bytes(Collective::Barrier, 1000, 4), 0);
  EXPECT_EQ(full_bytes(Collective::AllReduce, 1500, 4), 1000);
  EXPECT_EQ(full_bytes(Collective::Barrier, 0, 4), 0);
}

TEST(Cluster, PricesProductsByTheRoofline) {
  const Cluster cluster(round_numbers());
  // 2 * 1000^3 operations at half of 4e9 take 1 s; 3e6 elements of 2 bytes take 6 ms.
  expect_seconds(cluster.product_seconds(1000, 1000, 1000, NumberType::Bf16), 1e-3 + 1);
  // A product with a vector is bound by memory: 2e6 operations take 1 ms, 1.002e6 elements of 2 bytes take 2 ms.
  const double bytes = 2 * (1 * 1000 + 1000 * 1000 + 1 * 1000);
  expect_seconds(cluster.product_seconds(1, 1000, 1000, NumberType::Bf16), 1e-3 + bytes / 1e9);
  EXPECT_EQ(cluster.product_seconds(0, 1000, 1000, NumberType::Bf16), 0);
  expect_seconds(cluster.operations_seconds(2e9, NumberType::Bf16), 1e-3 + 1);
  EXPECT_EQ(cluster.operations_seconds(0, NumberType::Bf16), 0);
}

TEST(Cluster, PricesAttentionAtItsShareOfThePeak) {
  Profile profile = round_numbers();
  expect_seconds(Cluster(profile).attention_seconds(2e9, NumberType::Bf16), 1e-3 + 1);  // that of products, 0.5
  profile.device.attention = 0.25;
  expect_seconds(Cluster(profile).attention_seconds(2e9, NumberType::Bf16), 1e-3 + 2);
  expect_seconds(Cluster(profile).operations_seconds(2e9, NumberType::Bf16), 1e-3 + 1);
  EXPECT_EQ(Cluster(profile).attention_seconds(0, NumberType::Bf16), 0);
}

TEST(Cluster, TakesMeasuredRatesOfAttention) {
  Profile profile = round_numbers();
  profile.device.attention = 0.25;
  profile.machine.cores = 8;
  profile.device.shared = true;
  profile.attention = {{"fp32", "bf16"}, {1, 4}, {1e9, 2e9, 4e9, 1.6e10}};
  const Cluster one(profile, 8), two(profile, 4), four(profile, 2);  // 1, 2 and 4 threads a rank
  expect_interpolated(one.attention_seconds(2e9, NumberType::Fp32), 2);
  expect_interpolated(four.attention_seconds(2e9, NumberType::Bf16), 2e9 / 1.6e10);
  expect_interpolated(two.attention_seconds(2e9, NumberType::Bf16), 2e9 / 8e9);
  // No rate of fp16: the share of what a rank has of the peak, and the start.
  expect_seconds(four.attention_seconds(5e8, NumberType::Fp16), 1e-3 + 1);
}

TEST(Cluster, AddsTheOverheadOfEachOperator) {
  Profile profile = round_numbers();
  profile.device.overhead = 1e-2;
  const Cluster slow(profile), fast(round_numbers());
  const auto bf16 = NumberType::Bf16;
  expect_seconds(slow.product_seconds(10, 10, 10, bf16), fast.product_seconds(10, 10, 10, bf16) + 1e-2);
  expect_seconds(slow.operations_seconds(1e6, bf16), fast.operations_seconds(1e6, bf16) + 1e-2);
  expect_seconds(slow.attention_seconds(1e6, bf16), fast.attention_seconds(1e6, bf16) + 1e-2);
  expect_seconds(slow.elementwise_seconds(1e6), fast.elementwise_seconds(1e6) + 1e-2);
  EXPECT_EQ(slow.product_seconds(0, 10, 10, bf16), 0);
  profile.products = {{"bf16"}, {1}, {10}, {10}, {10}, {1e6}};
  profile.elementwise = {{1}, {1e3}, {1e6}};
  profile.attention = {{"bf16"}, {1}, {1e6}};
  const Cluster tables(profile);
  expect_interpolated(tables.product_seconds(10, 10, 10, bf16), 2e3 / 1e6 + 1e-2);
  expect_interpolated(tables.elementwise_seconds(1e5), 0.1 + 1e-2);
  expect_interpolated(tables.attention_seconds(1e5, bf16), 0.1 + 1e-2);
}

TEST(Cluster, DerivesPeaksThatAProfileDoesNotName) {
  const Cluster bf16(round_numbers());
  EXPECT_EQ(bf16.peak(NumberType::Fp16), 4e9);
  EXPECT_EQ(bf16.peak(NumberType::Fp8), 4e9);
  EXPECT_EQ(bf16.peak(NumberType::Fp32), 4e9 / 16);
  EXPECT_EQ(bf16.peak(NumberType::Fp64), 4e9 / 32);
  Profile profile = round_numbers();
  profile.device.bf16 = 0;
  profile.device.fp32 = 3e9;
  EXPECT_EQ(Cluster(profile).peak(NumberType::Bf16), 3e9);
  EXPECT_EQ(Cluster(profile).peak(NumberType::Fp64), 1.5e9);
  EXPECT_EQ(Cluster(find_profile("h100-8x")).peak(NumberType::Bf16), 989e12);
}

TEST(Cluster, PrefersMeasuredProducts) {
  Profile profile = round_numbers();
  profile.machine = {"processor", 4, 0};
  profile.products = {{"fp32"}, {1, 4}, {16, 64}, {64}, {64}, {1e9, 2e9, 4e9, 8e9}};
  // Four ranks on four cores: one thread. m = 32 is the middle of 16 and 64, so the rate is sqrt(1e9 * 2e9).
  const Cluster one_thread(profile);
  EXPECT_EQ(one_thread.threads(), 1);
  const double ops = 2.0 * 32 * 64 * 64;
  expect_interpolated(one_thread.product_seconds(32, 64, 64, NumberType::Fp32), ops / std::sqrt(2e18));
  // Two ranks: two threads, the middle of one and four.
  const Cluster two_threads(profile, 2);
  EXPECT_EQ(two_threads.threads(), 2);
  const double cube = 2.0 * 64 * 64 * 64;
  expect_interpolated(two_threads.product_seconds(64, 64, 64, NumberType::Fp32), cube / std::sqrt(2e9 * 8e9));
  // Beyond the grid the rate is that of its border.
  expect_interpolated(one_thread.product_seconds(1024, 64, 64, NumberType::Fp32), 2.0 * 1024 * 64 * 64 / 2e9);
  // A type that was not measured keeps the roofline: 2 * 64^3 operations at 2e9.
  expect_interpolated(one_thread.product_seconds(64, 64, 64, NumberType::Bf16), 1e-3 + 2.0 * 64 * 64 * 64 / 2e9);
}

TEST(Cluster, PricesElementwiseOperators) {
  Profile profile = round_numbers();
  expect_interpolated(Cluster(profile).elementwise_seconds(5e8), 1e-3 + 0.5);
  expect_interpolated(Cluster(profile).elementwise_seconds(0), 1e-3);
  profile.elementwise = {{1}, {1e4, 1e8}, {1e8, 1e10}};
  expect_interpolated(Cluster(profile).elementwise_seconds(1e8), 1e-2);
  expect_interpolated(Cluster(profile).elementwise_seconds(1e6), 1e-3);  // sqrt(1e8 * 1e10) = 1e9 bytes a second
  expect_interpolated(Cluster(profile).elementwise_seconds(1), 1e-3);    // never less than a start
}

TEST(Cluster, PrefersMeasuredCollectivesInsideANode) {
  Profile profile = round_numbers();
  profile.collectives = {{"all_reduce", "all_gather"}, {2, 4}, {1e-2, 2e-2, 3e-2, 4e-2}, {1e6, 2e6, 3e6, 4e6}};
  const Cluster cluster(profile);
  expect_interpolated(cluster.collective_seconds(Collective::AllReduce, 1e6, {2, 1}), 1e-2 + 1);
  expect_interpolated(cluster.collective_seconds(Collective::AllGather, 1e6, {4, 1}), 4e-2 + 0.25);
  expect_interpolated(cluster.collective_seconds(Collective::ReduceScatter, 0.75e9, {4, 1}), 3e-3 + 0.75);
}

TEST(Cluster, SharesTheMachineAmongItsRanks) {
  Profile profile = round_numbers();
  profile.device.shared = true;
  profile.machine = {"processor", 8, 0};
  const Cluster whole(profile, 1), half(profile, 2);
  EXPECT_EQ(whole.device_bytes(), 800);
  EXPECT_EQ(half.device_bytes(), 400);
  EXPECT_EQ(whole.threads(), 8);
  EXPECT_EQ(half.threads(), 4);
  EXPECT_EQ(half.peak(NumberType::Bf16), 2e9);
  expect_seconds(half.elementwise_seconds(5e8), 1e-3 + 1);
  EXPECT_EQ(Cluster(round_numbers(), 2).device_bytes(), 800);  // devices of their own
}

TEST(Cluster, PricesCopiesAndDisks) {
  Profile profile = round_numbers();
  profile.host = {1e9, 1e-3};
  profile.disk = {2e9, 1e9, 1e-2};
  const Cluster cluster(profile);
  expect_seconds(cluster.host_copy_seconds(1e9), 1e-3 + 1);
  expect_seconds(cluster.disk_read_seconds(1e9), 1e-2 + 0.5);
  expect_seconds(cluster.disk_write_seconds(1e9), 1e-2 + 1);
}

TEST(Cluster, SaysWhatAProfileLacks) {
  Profile profile = round_numbers();
  profile.network.bandwidth = 0;
  profile.node = {1, 0, 0};
  const Cluster cluster(profile);
  EXPECT_THAT(fault_of([&] { cluster.collective_seconds(Collective::Send, 8, {2, 2}); }),
              HasSubstr("round: the profile has no links between nodes; add for instance network = {"));
  EXPECT_THAT(fault_of([&] { cluster.collective_seconds(Collective::Send, 8, {2, 1}); }),
              HasSubstr("no links inside a node; add for instance node = {"));
  EXPECT_THAT(fault_of([&] { cluster.host_copy_seconds(8); }), HasSubstr("add for instance host = {"));
  EXPECT_THAT(fault_of([&] { cluster.disk_read_seconds(8); }), HasSubstr("add for instance disk = {"));
  EXPECT_THAT(fault_of([&] { cluster.disk_write_seconds(8); }), HasSubstr("add for instance disk = {"));
  EXPECT_THAT(fault_of([&] { Cluster(round_numbers(), 5); }),
              HasSubstr("ranks of a node must be at most node.devices: got 5, devices 4"));
}

TEST(NumberType, KnowsNamesAndCodes) {
  EXPECT_EQ(number_type_named("bf16"), NumberType::Bf16);
  EXPECT_EQ(number_type_named("float64"), NumberType::Fp64);
  EXPECT_EQ(number_type_named("int8"), std::nullopt);
  EXPECT_EQ(number_type_of(15), NumberType::Bf16);
  EXPECT_EQ(number_type_of(6), NumberType::Fp32);
  EXPECT_EQ(bytes_of(NumberType::Fp16), 2);
  EXPECT_STREQ(to_string(NumberType::Fp8), "fp8");
}

TEST(LogGrid, InterpolatesPowersExactly) {
  // f(x, y) = x^2 y is linear in the logarithms, so every point between grid points is exact up to rounding.
  const LogGrid grid({{1, 4, 32}, {2, 8}}, {2, 8, 32, 128, 2048, 8192});
  for (const double x : {1.0, 2.0, 4.0, 7.0, 32.0})
    for (const double y : {2.0, 3.0, 8.0}) expect_interpolated(grid.at({x, y}), x * x * y);
  expect_interpolated(grid.at({64, 1}), 2048);
  expect_interpolated(grid.largest(), 8192);
}

}  // namespace
}  // namespace colossal::plan::cluster_test
