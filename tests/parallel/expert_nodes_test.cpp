// The way of tokens to experts by way of nodes, and in fp8: bits of results and gradients, bytes, and the order of
// collectives, which must not depend on the choice of experts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/comm/compressed_collectives.h"
#include "colossal/comm/decorators/recording.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/expert_dispatch.h"
#include "colossal/ops/products/fp8.h"
#include "colossal/parallel/expert/ranks.h"
#include "colossal/parallel/expert/traffic.h"
#include "colossal/parallel/tensor/layout.h"
#include "support/tolerance.h"

namespace colossal::parallel::expert_nodes_test {
namespace {

using test::expect_equal;

constexpr int kRanks = 4;
constexpr int64_t kTokens = 9, kExperts = 8, kUsed = 3, kHidden = 200, kBlock = 128;

struct Way {
  int64_t node = 0;
  bool compresses = false;
};

std::shared_ptr<const MeshExpertRanks> ranks_of(comm::Mesh& mesh, const Way& way) {
  Layout layout = make_layout({}, mesh);
  layout.expert_node = way.node;
  layout.compresses_tokens = way.compresses;
  return std::make_shared<const MeshExpertRanks>(std::make_shared<const Layout>(std::move(layout)));
}

at::Tensor random(int64_t seed, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(sizes, generator, at::kFloat);
}

/// Returns kUsed different experts of each token in ascending order, as a rank would choose them.
at::Tensor random_experts(int64_t seed) {
  return std::get<0>(at::sort(std::get<1>(random(seed, {kTokens, kExperts}).topk(kUsed)), 1));
}

struct Result {
  at::Tensor y, dx, dweights;
};

/// Runs experts that square their input (`squares`) or return it. Elementwise, so bits do not depend on the order of
/// rows.
Result run(const std::shared_ptr<const MeshExpertRanks>& ranks, int rank, bool squares) {
  const at::Tensor x = random(10 + rank, {kTokens, kHidden}).requires_grad_(),
                   weights = random(20 + rank, {kTokens, kUsed}).abs().requires_grad_();
  const nn::ExpertDispatch way(random_experts(30 + rank), {}, kExperts, ranks);
  const at::Tensor rows = way.dispatch(x);
  const at::Tensor y = way.combine(squares ? rows * rows : rows, weights);
  torch::autograd::backward({(y * random(40 + rank, {kTokens, kHidden})).sum()}, {});
  return {y.detach(), x.grad(), weights.grad()};
}

TEST(ExpertNodes, GiveTheBitsOfTheStraightWay) {
  comm::run_ranks(kRanks, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("expert", kRanks)});
    const Result want = run(ranks_of(mesh, {}), world.rank(), true);
    for (const int64_t node : {2, 4}) {
      const Result got = run(ranks_of(mesh, {.node = node}), world.rank(), true);
      expect_equal(got.y, want.y, "y");
      expect_equal(got.dx, want.dx, "dx");
      expect_equal(got.dweights, want.dweights, "dweights");
    }
  });
}

/// Returns the group, collective and dtype of each call.
std::vector<std::string> order_of(const comm::RecordingWorld& world) {
  std::vector<std::string> order;
  for (const comm::RecordedCall& call : world.calls())
    order.push_back(call.group + " " + std::to_string(static_cast<int>(call.collective)) + " " +
                    c10::toString(call.dtype));
  return order;
}

// Three choices: all tokens of all ranks go to experts of rank 0; no token leaves its rank; and any experts.
TEST(ExpertNodes, CallInAnOrderThatDoesNotDependOnTheChoice) {
  for (const Way& way : {Way{}, Way{.node = 2}, Way{.node = 2, .compresses = true}, Way{.compresses = true}}) {
    comm::run_ranks(kRanks, [&](comm::World& world) {
      comm::RecordingWorld recorded(world);
      comm::Mesh mesh(recorded, {comm::Mesh::batch("expert", kRanks)});
      const auto ranks = ranks_of(mesh, way);
      const int64_t own = 2 * world.rank();
      const at::Tensor pair = at::arange(2, at::kLong).view({1, 2}).expand({kTokens, 2});
      std::vector<std::vector<std::string>> orders;
      for (const at::Tensor& experts : {pair, pair + own, random_experts(world.rank())}) {
        recorded.clear();
        const nn::ExpertDispatch dispatch(experts.contiguous(), {}, kExperts, ranks);
        const at::Tensor x = random(1, {kTokens, kHidden}).requires_grad_();
        dispatch.combine(dispatch.dispatch(x), at::ones(experts.sizes())).sum().backward();
        orders.push_back(order_of(recorded));
      }
      const size_t numbers = way.node > 0 ? 3 : 1, hops = way.node > 0 ? 2 : 1;
      EXPECT_EQ(orders[0].size(), numbers + 4 * hops);
      EXPECT_EQ(orders[0], orders[1]);
      EXPECT_EQ(orders[0], orders[2]);
    });
  }
}

TEST(ExpertNodes, RefuseANodeThatDoesNotDivideTheRanks) {
  EXPECT_THROW(comm::run_ranks(kRanks,
                               [](comm::World& world) {
                                 comm::Mesh mesh(world, {comm::Mesh::batch("expert", kRanks)});
                                 ranks_of(mesh, {.node = 3});
                               }),
               Error);
}

/// Returns x in e4m3 with a scale for each block, as a receiver restores it.
at::Tensor rounded(const at::Tensor& x, at::Tensor* scales = nullptr) {
  std::vector<at::Tensor> blocks, factors;
  for (int64_t first = 0; first < x.size(1); first += kBlock) {
    const at::Tensor block = x.narrow(1, first, std::min(kBlock, x.size(1) - first));
    const at::Tensor scale = ops::power_of_two_below(ops::scale_of(block.abs().amax(1, true), ops::Fp8::E4m3));
    blocks.push_back(ops::dequantize(ops::quantize(block, ops::Fp8::E4m3, scale), scale, at::kFloat));
    factors.push_back(scale.expand_as(block));
  }
  if (scales) *scales = at::cat(factors, 1);
  return at::cat(blocks, 1);
}

/// Returns the results of experts that return their input, from rounded rows where the expert is on another rank.
at::Tensor expected(int rank) {
  const at::Tensor x = random(10 + rank, {kTokens, kHidden}), sent = rounded(x),
                   weights = random(20 + rank, {kTokens, kUsed}).abs(), experts = random_experts(30 + rank);
  const at::Tensor stays = at::floor_divide(experts, kExperts / kRanks) == rank;
  at::Tensor y = at::zeros_like(x);
  for (int64_t j = 0; j < kUsed; ++j) y.add_(at::where(stays.narrow(1, j, 1), x, sent) * weights.narrow(1, j, 1));
  return y;
}

TEST(ExpertsInFp8, RoundOnlyRowsThatLeaveTheirRankAndOnce) {
  comm::run_ranks(kRanks, [](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("expert", kRanks)});
    const Result exact = run(ranks_of(mesh, {}), world.rank(), false);
    for (const int64_t node : {0, 2, 4}) {
      const Result got = run(ranks_of(mesh, {.node = node, .compresses = true}), world.rank(), false);
      EXPECT_FALSE(at::equal(got.y, exact.y)) << "rows are rounded";
      expect_equal(got.y, expected(world.rank()), "y");
      expect_equal(got.dx, exact.dx, "dx, which is not rounded");
    }
  });
}

// Half a unit of a mantissa of 3 bits, or of the smallest steps of e4m3, 2^-9, in units of the scale.
TEST(ExpertsInFp8, StayWithinThePrecisionOfTheFormat) {
  const at::Tensor x = random(3, {kTokens, kHidden}) * at::logspace(-9, 3, kHidden, 2);
  at::Tensor scales;
  const at::Tensor got = rounded(x, &scales);
  const at::Tensor bound = at::maximum(x.abs() * std::exp2(-4), std::exp2(-10) / scales);
  EXPECT_TRUE((got - x).abs().le(bound).all().item<bool>());
  expect_equal(rounded(got), got, "a second rounding");
  expect_equal(got.to(at::kBFloat16).to(at::kFloat), got, "values in bf16");
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const comm::Compression format = row_compression(kHidden);
    const at::Tensor messages = comm::compressed_rows(got.to(dtype), format);
    EXPECT_EQ(messages.size(1), 2 * (4 + kBlock)) << "two blocks of bytes with an fp32 scale each";
    expect_equal(comm::restored_rows(messages, kHidden, format, dtype), got.to(dtype), "messages");
  }
  EXPECT_EQ(comm::compressed_rows(x.narrow(0, 0, 0), row_compression(kHidden)).size(0), 0);
}

TEST(ExpertsInFp8, SpreadNaNOverItsBlock) {
  at::Tensor x = at::ones({2, kHidden});
  x[1][kBlock] = std::nan("");
  const comm::Compression format = row_compression(kHidden);
  const at::Tensor got = comm::restored_rows(comm::compressed_rows(x, format), kHidden, format, at::kFloat);
  expect_equal(got[0], x[0], "the other row");
  expect_equal(got[1].narrow(0, 0, kBlock), x[1].narrow(0, 0, kBlock), "the other block");
  EXPECT_TRUE(got[1].narrow(0, kBlock, kHidden - kBlock).isnan().all().item<bool>());
}

// Each rank's bytes of the forward dispatch against assignments counted by hand, and no other call in bytes.
TEST(ExpertsInFp8, SendOneByteForEachFeatureAndAScaleForEachBlock) {
  comm::run_ranks(kRanks, [](comm::World& world) {
    comm::RecordingWorld recorded(world);
    comm::Mesh mesh(recorded, {comm::Mesh::batch("expert", kRanks)});
    const at::Tensor owners = at::floor_divide(random_experts(30 + world.rank()), kExperts / kRanks);
    const auto remote = (owners != world.rank()).sum().item<int64_t>();
    recorded.clear();
    run(ranks_of(mesh, {.compresses = true}), world.rank(), false);
    double bytes = 0, elements = 0;
    for (const comm::RecordedCall& call : recorded.calls()) {
      if (call.dtype == at::kByte) bytes += call.sent.bytes;
      if (call.dtype == at::kFloat) elements += call.sent.elements;
    }
    EXPECT_EQ(bytes, static_cast<double>(remote * 2 * (4 + kBlock)));
    EXPECT_GT(elements, 0) << "results and gradients are not compressed";
  });
}

}  // namespace
}  // namespace colossal::parallel::expert_nodes_test
