// Conversions between all specs give each rank its block, at the least cost.
#include "colossal/plan/conversions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "colossal/base/error.h"

namespace colossal::plan::conversions_test {
namespace {

using ::testing::HasSubstr;
using Block = std::set<int64_t>;  // the elements that a rank has, by their place in the whole tensor

const Mesh kMesh = parse_mesh("data=2,tensor=4");

/// Returns the elements of a tensor of `dims` dimensions of eight that a rank has under a spec.
Block block_of(int rank, const Spec& spec) {
  const int coordinates[] = {rank / 4, rank % 4};
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const uint8_t set : spec) {
    int64_t blocks = 1, block = 0;
    for (int axis = 0; axis < 2; ++axis) {
      if (!(set >> axis & 1)) continue;
      blocks *= kMesh.axes[axis].size;
      block = block * kMesh.axes[axis].size + coordinates[axis];
    }
    ranges.push_back({block * 8 / blocks, (block + 1) * 8 / blocks});
  }
  Block block{0};
  for (const auto& [begin, end] : ranges) {
    Block longer;
    for (const int64_t element : block)
      for (int64_t i = begin; i < end; ++i) longer.insert(element * 8 + i);
    block = std::move(longer);
  }
  return block;
}

/// Returns the blocks of all ranks after a call. Each rank may only take what the ranks of its group have.
std::vector<Block> after(const Call& call, const std::vector<Block>& before) {
  std::vector<Block> blocks;
  for (int rank = 0; rank < 8; ++rank) {
    Block reachable;
    for (int other = 0; other < 8; ++other) {
      const bool in_group = call.axis == 0 ? other % 4 == rank % 4 : other / 4 == rank / 4;
      if (call.movement == Movement::Slice ? other == rank : in_group)
        reachable.insert(before[other].begin(), before[other].end());
    }
    const Block wanted = block_of(rank, call.result);
    Block got;
    std::set_intersection(wanted.begin(), wanted.end(), reachable.begin(), reachable.end(),
                          std::inserter(got, got.end()));
    const size_t size = before[rank].size(), ranks = kMesh.axes[call.axis].size;
    EXPECT_EQ(got.size(), call.movement == Movement::AllGather  ? size * ranks
                          : call.movement == Movement::AllToAll ? size
                                                                : size / ranks);
    blocks.push_back(std::move(got));
  }
  return blocks;
}

/// Returns the seconds of the cheapest ways between all specs, by relaxing one-step conversions until nothing changes.
std::vector<std::vector<double>> cheapest(const TensorType& type, const std::vector<Spec>& specs, const Links& links) {
  const size_t count = specs.size();
  std::vector<std::vector<double>> seconds(count, std::vector<double>(count, 1e30));
  for (size_t i = 0; i < count; ++i) {
    seconds[i][i] = 0;
    for (size_t j = 0; j < count; ++j) {
      const Conversion path = convert(type, specs[i], specs[j], kMesh, links);
      if (path.calls.size() == 1) seconds[i][j] = path.seconds;
    }
  }
  for (size_t k = 0; k < count; ++k)
    for (size_t i = 0; i < count; ++i)
      for (size_t j = 0; j < count; ++j) seconds[i][j] = std::min(seconds[i][j], seconds[i][k] + seconds[k][j]);
  return seconds;
}

TEST(Convert, GivesEveryRankItsBlockAtTheLeastCost) {
  Links links;
  links.axes = {{1e-5, 1e10}, {1e-6, 1e11}};
  int pairs = 0;
  for (const size_t dims : {2, 3, 4}) {
    const TensorType type{std::vector<int64_t>(dims, 8)};
    const std::vector<Spec> specs = legal_specs(type.shape, kMesh);
    const auto least = cheapest(type, specs, links);
    for (size_t i = 0; i < specs.size(); ++i) {
      std::vector<Block> start;
      for (int rank = 0; rank < 8; ++rank) start.push_back(block_of(rank, specs[i]));
      for (size_t j = 0; j < specs.size(); ++j) {
        if (i == j) continue;
        ++pairs;
        const Conversion path = convert(type, specs[i], specs[j], kMesh, links);
        SCOPED_TRACE(print_spec(specs[i], kMesh) + " to " + print_spec(specs[j], kMesh));
        std::vector<Block> blocks = start;
        for (const Call& call : path.calls) blocks = after(call, blocks);
        for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(blocks[rank], block_of(rank, specs[j]));
        EXPECT_NEAR(path.seconds, least[i][j], 1e-12 * least[i][j]);
      }
    }
  }
  EXPECT_EQ(pairs, 72 + 240 + 600);
}

TEST(Convert, SlicesBeforeItSends) {
  const TensorType type{{8, 8}};
  const Conversion path =
      convert(type, parse_spec("[R, tensor]", kMesh), parse_spec("[data+tensor, R]", kMesh), kMesh, {});
  ASSERT_EQ(path.calls.size(), 2);
  EXPECT_EQ(path.calls[0].movement, Movement::Slice);
  EXPECT_EQ(path.calls[1].movement, Movement::AllToAll);
  EXPECT_EQ(path.bytes, 8 * 8 * 4 / 8 * 3 / 4) << "three quarters of an eighth; gathering first sends eight times that";
}

TEST(Convert, PricesCollectives) {
  Links links;
  links.start = 1;
  links.axes = {{}, {.latency = 10, .bandwidth = 2}};
  const auto seconds = [&](Movement movement) { return price(movement, 1, 64, kMesh, links).seconds; };
  EXPECT_EQ(seconds(Movement::AllGather), 1 + 3 * 10 + 3 * 64 / 2);
  EXPECT_EQ(seconds(Movement::AllReduce), 1 + 6 * 10 + 96 / 2);
  EXPECT_EQ(seconds(Movement::ReduceScatter), 1 + 3 * 10 + 48 / 2);
  EXPECT_EQ(seconds(Movement::AllToAll), 1 + 3 * 10 + 48 / 2);
  EXPECT_EQ(seconds(Movement::Slice), 0);
}

TEST(Convert, RefusesIllegalSpecs) {
  try {
    convert({{6, 8}}, {2, 0}, {0, 0}, kMesh, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("got [tensor, R] for [6, 8] on the mesh data=2,tensor=4"));
  }
}

}  // namespace
}  // namespace colossal::plan::conversions_test
