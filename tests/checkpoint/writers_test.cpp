// Assignment of blocks to writing ranks: each element is written once, and all ranks write about as many bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "checkpoint/sample_state.h"
#include "colossal/checkpoint/local_boxes.h"
#include "colossal/checkpoint/newest.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/run_ranks.h"
#include "support/temporary_folder.h"

namespace colossal::checkpoint::writers_test {
namespace {

/// Returns the sample state as ZeRO's chunks hold it: `sharers` adjacent replicas hold a part of each tensor, and only
/// the first such group counts.
TrainingState in_parts(const tensor::MeshCoordinates& coordinates, int sharers, int64_t salt = 0) {
  TrainingState state = sample_state(coordinates, salt);
  state.sharers = sharers;
  for (NamedTensor& tensor : state.tensors) {
    if (tensor.name == "tokens_seen") continue;  // some tensors have no part, e.g. fp8 histories
    const int64_t all = tensor.value.numel(), share = (all + sharers - 1) / sharers;
    const int64_t first = std::min(all, coordinates.index("data") % sharers * share),
                  size = std::min(share, all - first);
    tensor.part = tensor::FlatPart{first, size, coordinates.index("data") / sharers == 0};
    tensor.value = tensor.value.clone().reshape({-1}).narrow(0, first, size).contiguous();
  }
  return state;
}

int64_t bytes_of(const WrittenBlock& written) {
  return Box{{}, written.block.size}.numel() * static_cast<int64_t>(written.tensor->value.element_size());
}

struct Written {
  std::vector<int64_t> bytes;  // written bytes of each rank
  int64_t largest = 0;         // bytes of the largest block
};

/// Checks that every element is written once.
Written deal(const Layout& layout, const std::function<TrainingState(const tensor::MeshCoordinates&)>& state_at) {
  Written written{std::vector<int64_t>(layout.ranks(), 0)};
  std::map<std::string, at::Tensor> times;
  for (const Sample& sample : samples()) times[sample.name] = at::zeros(sample.spec.shape, at::kLong);
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const TrainingState state = state_at(layout.coordinates(rank));
    for (const WrittenBlock& w : written_blocks(state, layout.coordinates(rank))) {
      at_box(times.at(w.tensor->name), {w.block.start, w.block.size}).add_(1);
      written.bytes[rank] += bytes_of(w);
      written.largest = std::max(written.largest, bytes_of(w));
    }
  }
  for (const auto& [name, count] : times) EXPECT_TRUE(count.eq(1).all().item<bool>()) << name;
  return written;
}

TEST(Writers, BalanceBytesOverReplicas) {
  for (const int replicas : {2, 3, 4}) {
    for (const bool parts : {false, true}) {
      SCOPED_TRACE(testing::Message() << replicas << " replicas, parts " << parts);
      const Written written = deal({replicas, 1}, [&](const tensor::MeshCoordinates& coordinates) {
        return parts ? in_parts(coordinates, 1) : sample_state(coordinates);
      });
      const auto [least, most] = std::minmax_element(written.bytes.begin(), written.bytes.end());
      EXPECT_LE(*most - *least, written.largest);
      EXPECT_GT(*least, 0);
    }
  }
}

TEST(Writers, WriteEveryElementOnceInEveryLayout) {
  for (const Layout& layout : layouts()) {
    for (const int sharers : {1, 2, 4}) {
      if (layout.data % sharers != 0) continue;
      SCOPED_TRACE(testing::Message() << layout.data << "x" << layout.tensor << ", sharers " << sharers);
      deal(layout, [&](const tensor::MeshCoordinates& coordinates) { return in_parts(coordinates, sharers); });
      deal(layout, [&](const tensor::MeshCoordinates& coordinates) { return sample_state(coordinates); });
    }
  }
}

TEST(Writers, WriteSharedTensorsOnTheFirstStage) {
  tensor::ShardSpec tied = tensor::ShardSpec::whole({8}), last = tensor::ShardSpec::whole({8});
  tied.stages = {0, 1};
  last.stages = {1};
  std::map<std::string, int> times;
  for (int stage = 0; stage < 2; ++stage)
    for (int replica = 0; replica < 2; ++replica) {
      const tensor::MeshCoordinates coordinates(
          {{"pipeline", 2, stage}, {"data", 2, replica, tensor::BatchSplit::Rows}});
      TrainingState state;
      state.tensors.push_back({"tied", at::zeros({8}), tied});
      if (stage == 1) state.tensors.push_back({"last", at::zeros({8}), last});
      for (const WrittenBlock& written : written_blocks(state, coordinates)) {
        ++times[written.tensor->name];
        EXPECT_EQ(stage, written.tensor->name == "tied" ? 0 : 1);
      }
    }
  EXPECT_THAT(times, testing::ElementsAre(testing::Pair("last", 1), testing::Pair("tied", 1)));
}

TEST(Writers, WriteEquallyLargeFilesThatLoadBitwise) {
  test::TemporaryFolder folder;
  const Layout layout{2, 1};
  const auto on_ranks = [](const Layout& layout, const auto& work) {
    comm::run_ranks(layout.ranks(), [&](comm::World& world) {
      std::vector<int> all(world.size());
      for (int rank = 0; rank < world.size(); ++rank) all[rank] = rank;
      work(*world.make_group("world", all), layout.coordinates(world.rank()));
    });
  };
  on_ranks(layout, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
    save(folder.path(), 1, in_parts(coordinates, 1), world, coordinates, 0);
  });
  std::vector<int64_t> bytes;
  int64_t largest = 0;
  for (const char* shard : {"rank-00000.safetensors", "rank-00001.safetensors"}) {
    SafetensorsReader reader(step_path(folder.path(), 1) + "/" + shard);
    bytes.push_back(0);
    for (const auto& [name, entry] : reader.entries()) {
      const auto size = static_cast<int64_t>(reader.bytes(name).size());
      bytes.back() += size;
      largest = std::max(largest, size);
    }
  }
  EXPECT_LE(std::abs(bytes[0] - bytes[1]), largest);
  for (const Layout& to : layouts()) {
    on_ranks(to, [&](comm::Group& world, const tensor::MeshCoordinates& coordinates) {
      TrainingState state = filled(sample_state(coordinates), 99);
      load(step_path(folder.path(), 1), state, world, coordinates);
      EXPECT_TRUE(same_bits(state, sample_state(coordinates))) << to.data << "x" << to.tensor;
    });
  }
}

}  // namespace
}  // namespace colossal::checkpoint::writers_test
