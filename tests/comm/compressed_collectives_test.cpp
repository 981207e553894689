// Collectives with one byte per element: the received values, their error, and the number of bytes.
#include "colossal/comm/compressed_collectives.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "support/ranks_values.h"
#include "support/thrown_message.h"

namespace colossal::test::compressed_collectives_test {
namespace {

using comm::compressed_all_gather;
using comm::compressed_all_reduce;
using comm::compressed_bytes;
using comm::compressed_reduce_scatter;
using comm::Compression;
using Format = Compression::Format;

constexpr Compression kFp8{}, kFp8InBlocks{.block = 128}, kInt8{.format = Format::Int8, .block = 128};

void on_ranks(int n, const std::function<void(comm::World&, comm::Group&)>& body) {
  comm::run_ranks(n, [&](comm::World& world) {
    std::vector<int> ranks(world.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    body(world, *world.make_group("data", ranks));
  });
}

at::Tensor normal(int64_t numel, int rank) {
  return at::randn({numel}, at::detail::createCPUGenerator(rank + 1), at::TensorOptions(at::kFloat));
}

at::Tensor gathered(const at::Tensor& in, comm::Group& group, const Compression& compression) {
  at::Tensor out = at::empty({in.numel() * group.size()}, in.options());
  compressed_all_gather(out, in, group, compression).wait();
  return out;
}

at::Tensor scattered(const at::Tensor& in, comm::Group& group, const Compression& compression) {
  at::Tensor out = at::empty({in.numel() / group.size()}, in.options());
  compressed_reduce_scatter(out, in, group, compression).wait();
  return out;
}

double largest(const at::Tensor& x) { return x.abs().max().to(at::kDouble).item<double>(); }
double relative_error(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).square().mean() / want.square().mean()).sqrt().to(at::kDouble).item<double>();
}

class Compressed : public testing::TestWithParam<int> {};

// Numbers of 2 bits, whose sums have at most 4; other scales on each rank; sizes that have no divisors.
TEST_P(Compressed, KeepsNumbersOfTheFormatExact) {
  const int n = GetParam();
  for (const int64_t numel : {0, 1, 5, 128, 1003})
    for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf})
      for (const Compression& c : {kFp8, kFp8InBlocks, Compression{.block = 3}}) {
        const auto values = [&](int rank) {
          return (at::arange(numel, at::kLong) * 3 + rank).remainder(2).to(type) * 0.75;
        };
        on_ranks(n, [&](comm::World& world, comm::Group& group) {
          std::vector<at::Tensor> all;
          for (int r = 0; r < n; ++r) all.push_back(values(r) * std::exp2(r));
          EXPECT_TRUE(same_bits(gathered(all[world.rank()], group, c), at::cat(all)));
          at::Tensor x = values(world.rank()), sum = at::zeros_like(x);
          for (int r = 0; r < n; ++r) sum += values(r);
          compressed_all_reduce(x, group, c);
          EXPECT_TRUE(same_bits(x, sum));
          // Slice r of each rank's input is its values times 2^r.
          std::vector<at::Tensor> slices;
          for (int r = 0; r < n; ++r) slices.push_back(values(world.rank()) * std::exp2(r));
          EXPECT_TRUE(same_bits(scattered(at::cat(slices), group, c), sum * std::exp2(world.rank())));
        });
      }
}

TEST_P(Compressed, KeepsErrorsWithinTheirBounds) {
  const int n = GetParam();
  const int64_t numel = 5001;
  for (const Compression& c : {kFp8, kFp8InBlocks, kInt8}) {
    const double share = c.format == Format::E4m3 ? 1.0 / 16 : 1.0 / 254;
    on_ranks(n, [&](comm::World& world, comm::Group& group) {
      std::vector<at::Tensor> all;
      at::Tensor sum = at::zeros({numel});
      double largest_terms = 0;
      for (int r = 0; r < n; ++r) {
        all.push_back(normal(numel, r) * std::exp2(3 * r));
        sum += all[r];
        largest_terms += largest(all[r]);
      }
      const at::Tensor got = gathered(all[world.rank()], group, c);
      for (int r = 0; r < n; ++r)
        EXPECT_LE(largest(got.narrow(0, r * numel, numel) - all[r]), 1.0001 * share * largest(all[r]));
      EXPECT_EQ(largest(got - at::cat(all)) == 0, n == 1);  // an error is expected, unless nothing is sent
      at::Tensor x = all[world.rank()].clone();
      compressed_all_reduce(x, group, c);
      EXPECT_LE(largest(x - sum), 1.0001 * share * (largest_terms + largest(x)));
      const int64_t part = numel / 12 * 12 / n;  // part of ranks 1 to 4
      const at::Tensor slice = scattered(all[world.rank()].narrow(0, 0, n * part), group, c);
      const at::Tensor off = slice - sum.narrow(0, world.rank() * part, part);
      EXPECT_LE(largest(off), 1.0001 * share * largest_terms);
      EXPECT_EQ(largest(off) == 0, n == 1);
    });
  }
}

// e4m3: 0.026 per hop, measured independently of this code. int8: a step of amax / 127 has an error of 1/sqrt(12) of
// it, and the largest of 128 normal numbers is 2.86 (rms), so 0.0065. The errors of two hops are independent.
TEST(CompressedError, MatchesTheFormatForNormalNumbers) {
  const int n = 4;
  const int64_t numel = 1 << 16;
  at::Tensor sum = at::zeros({numel});
  for (int r = 0; r < n; ++r) sum += normal(numel, r);
  for (const auto& [c, hop] : {std::pair{kFp8, 0.0263}, {kFp8InBlocks, 0.0263}, {kInt8, 0.0065}})
    on_ranks(n, [&, c = c, hop = hop](comm::World& world, comm::Group& group) {
      at::Tensor x = normal(numel, world.rank());
      EXPECT_NEAR(relative_error(gathered(x, group, c).narrow(0, 0, numel), normal(numel, 0)), hop, 0.05 * hop);
      const int64_t part = numel / n;
      const at::Tensor slice = scattered(x, group, c);
      EXPECT_NEAR(relative_error(slice, sum.narrow(0, world.rank() * part, part)), hop, 0.05 * hop);
      compressed_all_reduce(x, group, c);
      EXPECT_NEAR(relative_error(x, sum), std::sqrt(2.0) * hop, 0.05 * std::sqrt(2.0) * hop);
    });
}

// One number is a thousand times as large as the others. int8 with one scale rounds the others to 0, with blocks only
// those in its block. fp8 is not affected.
TEST(CompressedError, StaysInTheBlockOfAnOutlier) {
  at::Tensor x = normal(1 << 14, 0);
  x[77] = 1000;
  on_ranks(2, [&](comm::World&, comm::Group& group) {
    const auto error = [&](const Compression& c) {
      const at::Tensor got = gathered(x, group, c).narrow(0, 128, x.numel() - 128);
      return relative_error(got, x.narrow(0, 128, x.numel() - 128));
    };
    EXPECT_GT(error({.format = Format::Int8}), 0.9);
    EXPECT_LT(error(kInt8), 0.007);
    EXPECT_LT(error(kFp8), 0.028);
  });
}

TEST_P(Compressed, GivesAllRanksTheSameBits) {
  const int n = GetParam();
  for (const Compression& c : {kFp8, kInt8}) {
    std::vector<at::Tensor> reduced(n), all(n);
    on_ranks(n, [&](comm::World& world, comm::Group& group) {
      reduced[world.rank()] = normal(777, world.rank()).to(at::kBFloat16);
      compressed_all_reduce(reduced[world.rank()], group, c);
      all[world.rank()] = gathered(normal(777, world.rank()), group, c);
    });
    for (int r = 1; r < n; ++r) {
      EXPECT_TRUE(same_bits(reduced[r], reduced[0]));
      EXPECT_TRUE(same_bits(all[r], all[0]));
    }
  }
}

TEST_P(Compressed, SendsTheBytesOfTheContract) {
  const int n = GetParam();
  EXPECT_EQ(compressed_bytes(1000, kFp8), 1004);
  EXPECT_EQ(compressed_bytes(1000, kInt8), 8 * 132);
  EXPECT_EQ(compressed_bytes(0, kFp8), 0);
  for (const Compression& c : {kFp8, kInt8})
    on_ranks(n, [&](comm::World& world, comm::Group& group) {
      const int64_t numel = 10007;
      at::Tensor x = normal(numel, world.rank());
      const auto& traffic = world.traffic();
      world.traffic().reset();
      gathered(x, group, c);
      EXPECT_EQ(traffic.total().bytes, static_cast<double>((n - 1) * compressed_bytes(numel, c)));
      EXPECT_EQ(traffic.total().calls, n == 1 ? 0 : 1);
      world.traffic().reset();
      compressed_all_reduce(x, group, c);
      EXPECT_EQ(traffic.total().bytes, static_cast<double>(2 * (n - 1) * compressed_bytes((numel + n - 1) / n, c)));
      EXPECT_EQ(traffic.total().calls, n == 1 ? 0 : 2);
      const double compressed = traffic.total().bytes;
      world.traffic().reset();
      scattered(at::cat(std::vector<at::Tensor>(n, x)), group, c);
      EXPECT_EQ(traffic.total().bytes, static_cast<double>((n - 1) * compressed_bytes(numel, c)));
      EXPECT_EQ(traffic.total().calls, n == 1 ? 0 : 1);
      world.traffic().reset();
      group.all_reduce(x, comm::Reduce::Sum).wait();
      const double share = 0.25 * (c.block ? 132.0 / 128 : 1);  // share of the fp32 bytes that an uncompressed call
                                                                // sends
      EXPECT_NEAR(compressed, share * traffic.total().bytes, 0.01 * traffic.total().bytes);
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Compressed, testing::Values(1, 2, 3, 4));

TEST(CompressedError, ShowsNonFiniteNumbersToAllRanks) {
  for (const double bad : {INFINITY, -INFINITY, NAN})
    for (const Compression& c : {kFp8InBlocks, kInt8})
      on_ranks(2, [&](comm::World& world, comm::Group& group) {
        at::Tensor x = at::ones({1024});
        if (world.rank() == 1) x[130] = bad;
        compressed_all_reduce(x, group, c);
        EXPECT_TRUE(x.narrow(0, 128, 128).isnan().all().item<bool>());
        EXPECT_TRUE(x.narrow(0, 256, 768).eq(2).all().item<bool>());
        at::Tensor ones = at::ones({1024});
        if (world.rank() == 1) ones[130] = bad;
        const at::Tensor slice = scattered(ones, group, c);
        EXPECT_EQ(slice.isnan().sum().item<int64_t>(), world.rank() == 0 ? 128 : 0);
      });
}

// Several calls are in progress at once, their inputs are freed, and each rank waits for them in another order.
TEST(CompressedWork, AllowsInputsToChangeAtOnce) {
  on_ranks(2, [](comm::World& world, comm::Group& group) {
    at::Tensor all = at::zeros({8}), part = at::zeros({4});
    at::Tensor in = at::full({4}, 1.0 + world.rank()), both = at::ones({8});
    comm::Work gathering = compressed_all_gather(all, in, group, kFp8);
    in.fill_(64);
    comm::Work scattering = compressed_reduce_scatter(part, both, group, kInt8);
    both.fill_(64);
    std::array works{&gathering, &scattering};
    if (world.rank() == 0) std::swap(works[0], works[1]);
    for (comm::Work* work : works) work->wait();
    EXPECT_TRUE(all.equal(at::cat({at::ones({4}), at::full({4}, 2.0)})));
    EXPECT_TRUE(part.allclose(at::full({4}, 2.0)));
  });
}

TEST(CompressedNames, SelectsFormatAndBlock) {
  EXPECT_THAT(comm::compression_names(), testing::ElementsAre("none", "fp8", "int8"));
  EXPECT_FALSE(comm::compression_of("none").has_value());
  const Compression fp8 = comm::compression_of("fp8").value(), int8 = comm::compression_of("int8").value();
  EXPECT_EQ(fp8.format, Format::E4m3);
  EXPECT_EQ(compressed_bytes(1 << 20, fp8), (1 << 20) + 4 * 1024);
  EXPECT_EQ(int8.format, Format::Int8);
  EXPECT_EQ(compressed_bytes(1 << 20, int8), (1 << 20) + 4 * 8192);
  EXPECT_EQ(thrown_message([] { comm::compression_of("fp4"); }),
            "[parallel] compress must be none, fp8 or int8: got fp4");
}

TEST(CompressedError, RefusesInvalidArguments) {
  on_ranks(2, [](comm::World& world, comm::Group& group) {
    const auto gathering = [&](at::Tensor out, const at::Tensor& in, const Compression& c = {}) {
      return thrown_message([&] { compressed_all_gather(out, in, group, c); });
    };
    const auto scattering = [&](at::Tensor out, const at::Tensor& in, const Compression& c = {}) {
      return thrown_message([&] { compressed_reduce_scatter(out, in, group, c); });
    };
    const auto has = [](const char* words) { return testing::HasSubstr(words); };
    const at::Tensor two = at::ones({2}), four = at::ones({4}), across = at::ones({4, 2}).t();
    EXPECT_THAT(gathering(at::ones({5}), two),
                has("[compressed] an all_gather among 2 ranks needs an output of 2 inputs: got 5"));
    EXPECT_THAT(gathering(four, at::ones({2}, at::kLong)),
                has("the input of an all_gather must be fp64, fp32, bf16 or fp16: got Long"));
    EXPECT_THAT(gathering(across, four), has("the output of an all_gather must be contiguous"));
    EXPECT_THAT(gathering(four, two, {.block = -1}), has("block must be at least 1 element"));
    EXPECT_THAT(scattering(two, at::ones({5})),
                has("[compressed] a reduce_scatter among 2 ranks needs an input of 2 outputs: got 5"));
    EXPECT_THAT(scattering(at::ones({2}, at::kLong), four), has("the output of a reduce_scatter must be fp64"));
    EXPECT_THAT(scattering(four, across), has("the input of a reduce_scatter must be contiguous"));
    at::Tensor integers = at::ones({4}, at::kLong);
    EXPECT_THAT(thrown_message([&] { compressed_all_reduce(integers, group, {}); }),
                has("the input of an all_reduce must be"));
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

}  // namespace
}  // namespace colossal::test::compressed_collectives_test
