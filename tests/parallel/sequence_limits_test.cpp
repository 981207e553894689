// Configurations that sequence parallelism refuses, with the reason, before a group is made. The groups that it makes
// are tested, too.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/comm/decorators/decorator.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/parallel/sequence/attention_cost.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/modes.h"
#include "colossal/parallel/tensor/modes.h"
#include "colossal/train/engine.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::test::sequence_limits_test {
namespace {

using parallel::SequenceConfig;
using testing::HasSubstr;

/// Records the groups that were requested from a world, in order.
class NotingWorld final : public comm::WorldDecorator {
 public:
  using WorldDecorator::WorldDecorator;
  struct Asked {
    std::string name, channel;
    std::vector<int> ranks;
  };
  std::shared_ptr<comm::Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                          const std::string& channel = "") override {
    if (ranks.size() > 1) asked.push_back({name, channel, ranks});
    return WorldDecorator::make_group(name, ranks, channel);
  }
  std::vector<Asked> asked;
};

// Four heads; over two ranks of tensor parallelism, two per rank.
TEST(SequenceLimits, RefusesHeadsThatDoNotDivideBeforeMakingAGroup) {
  const auto simulated = comm::make_simulated_world(1, 6);
  NotingWorld world(*simulated);
  run::Config config;
  config.parallel.sequence = {3, "ulysses"};
  config.parallel.tensor.size = 2;
  config.training.batch_size = 1;
  const std::string refusal = "[parallel] the 2 attention heads of a rank must be divisible by the 3 ranks";
  EXPECT_THAT(thrown_message([&] { train::initialize(world, config, tiny_gpt2(), at::kCPU); }), HasSubstr(refusal));
  comm::Mesh mesh(world, config.parallel.axes());
  const auto decoder = [&] { distributed::DistributedModel(mesh, config.parallel, tiny_gpt2(), {}, {}); };
  EXPECT_THAT(thrown_message(decoder), HasSubstr(refusal)) << "of generate";
  EXPECT_TRUE(world.asked.empty()) << world.asked.front().name;
  EXPECT_THAT(thrown_message([] { parallel::published_cost({6, "usp", 3}, {.heads = 4, .kv_heads = 4}); }),
              HasSubstr("the 4 attention heads of a rank must be divisible by the 3 ranks"))
      << "of bench sequence, before ranks are started";
  EXPECT_NO_THROW(parallel::check_heads({6, "usp", 2}, 4));
  EXPECT_NO_THROW(parallel::check_heads({3, "gather"}, 4));
}

// The check before the layout exists agrees with the layout.
TEST(SequenceLimits, CountsTheHeadsOfATensorParallelRank) {
  for (const int ranks : {1, 2, 4, 8}) {
    const auto world = comm::make_simulated_world(0, ranks);
    parallel::for_each_mode([&](auto mode) {
      for (const parallel::TensorConfig& config : mode.formed_by(ranks)) {
        comm::Mesh mesh(*world, parallel::tensor_axes(config));
        const parallel::Layout layout = parallel::make_layout(config, mesh);
        EXPECT_EQ(parallel::head_parts(config), mesh.coordinates().size(layout.inside.columns)) << config.mode << ranks;
      }
    });
  }
}

// Commands for text, `bench sequence` and the tests of each mode run the modes of one sequence only.
TEST(SequenceLimits, ListsModesOfTwoAxesForLayoutsOnly) {
  using testing::Contains, testing::Not;
  EXPECT_THAT(parallel::all_sequence_mode_names(), Contains("dsp"));
  EXPECT_THAT(parallel::sequence_mode_names(), Not(Contains("dsp")));
  for (const SequenceConfig& config : parallel::sequence_modes(4)) EXPECT_NE(config.mode, "dsp");
  EXPECT_EQ(parallel::sequence_axes({4, "dsp"}).size(), 1U);
  const auto refused = [](const auto& check) { return thrown_message(check); };
  EXPECT_THAT(refused([] { parallel::check_sequence({2, "dsp"}, 8, 2); }),
              HasSubstr("tensor.sequence splits those of a rank further: got both; set tensor.sequence = false"));
  EXPECT_THAT(refused([] { parallel::check_sequence({4, "dsp"}, 3); }),
              HasSubstr("each of the 4 ranks of parallel.sequence must have a part of both axes: got 3 places"));
  EXPECT_THAT(refused([] { parallel::published_cost({2, "dsp"}, {}); }),
              HasSubstr("sequence.mode must be one of gather, ulysses, ring, usp, ring-self-attention: got dsp"));
}

TEST(SequenceLimits, ExplainsLimitsOfAttention) {
  const auto world = comm::make_simulated_world(0, 2);
  const SequenceConfig config{2, "ring"};
  comm::Mesh mesh(*world, parallel::sequence_axes(config));
  const parallel::Layout layout = parallel::with_sequence(parallel::make_layout({}, mesh), config);
  const auto attention = layout.attention(0, {8, 2, 2, 4}, {});
  const at::Tensor x = at::ones({1, 4, 2, 4});
  const nn::ForwardContext step = layout.with_cut({}, 8);
  const auto refused = [&](const nn::ForwardContext& of) {
    return thrown_message([&] { attention->forward({x, x, x, {}}, of); });
  };
  EXPECT_THAT(
      refused({}),
      HasSubstr("[parallel] a step must have a cut, the tokens of each rank: got none; Layout::with_cut() makes it"));
  nn::ForwardContext several = step;
  several.parts.set(nn::Sequences{{3, 5}});
  EXPECT_THAT(refused(several),
              HasSubstr("[parallel] with tokens split by parallel.sequence a row must be one "
                        "sequence: got 2; separate them by documents (nn::ForwardContext::documents)"));
  nn::KvCache cache(16);
  nn::ForwardContext decoding = step;
  decoding.parts.set(nn::Decoding{&cache});
  decoding.documents = at::zeros({1, 8}, at::kLong);
  EXPECT_THAT(refused(decoding), HasSubstr("a cache must be filled by one prompt of one document: got documents; "
                                           "continue with layers that have whole sequences"));
  decoding.documents = at::Tensor();
  cache.append(0, x, x, {});
  cache.advance({}, 4);
  EXPECT_THAT(refused(decoding), HasSubstr("of one document: got a cache that holds tokens"));
}

// Attention exchanges do not queue after the gradient reduction of the same ranks, and any two ranks make their common
// groups in the same order.
TEST(SequenceGroups, SeparatesAttentionGroupsInOneOrder) {
  for (const SequenceConfig& config : parallel::sequence_modes(4)) {
    std::vector<std::vector<NotingWorld::Asked>> asked(4);
    comm::run_ranks(4, [&](comm::World& threads) {
      NotingWorld world(threads);
      run::Config run;
      run.parallel.sequence = config;
      run.parallel.zero = 1;
      run.training.batch_size = 1;
      run.data.sequence = 16;
      train::initialize(world, run, tiny_gpt2(), at::kCPU);
      asked[world.rank()] = world.asked;
    });
    const auto shared = [&](int rank, int other) {
      std::vector<std::string> names;
      for (const auto& group : asked[rank])
        if (std::find(group.ranks.begin(), group.ranks.end(), other) != group.ranks.end())
          names.push_back(
              concat(group.name, " ", at::IntArrayRef(std::vector<int64_t>(group.ranks.begin(), group.ranks.end()))));
      return names;
    };
    for (int rank = 0; rank < 4; ++rank)
      for (int other = 0; other < rank; ++other) EXPECT_EQ(shared(rank, other), shared(other, rank)) << config.mode;
    for (const auto& group : asked[0]) {
      const bool exchanges = group.name.ends_with("attention");
      EXPECT_EQ(group.channel, exchanges ? "attention" : "") << config.mode << ", " << group.name;
    }
    const auto of_channel =
        std::count_if(asked[0].begin(), asked[0].end(), [](const auto& g) { return !g.channel.empty(); });
    EXPECT_EQ(of_channel, config.mode == "ring" ? 0 : 1) << config.mode;
  }
}

}  // namespace
}  // namespace colossal::test::sequence_limits_test
