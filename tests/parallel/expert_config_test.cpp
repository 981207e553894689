// The section [parallel] expert: the mesh axis, the replicas that follow from it, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/config.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/parallel/expert/config.h"
#include "colossal/run/config.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::parallel::expert_config_test {
namespace {

using distributed::ParallelConfig;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kDense =
    "[parallel] expert needs a mixture of experts: got expert.size 4 for a dense model; set model.experts.count, or "
    "leave parallel.expert out";

TEST(ExpertConfig, ReadsASizeAlone) {
  run::Config config;
  ConfigDocument::parse("[parallel]\nexpert = 4\n", "x.toml").read(config);
  EXPECT_EQ(config.parallel.expert.size, 4);
  EXPECT_EQ(config.parallel.expert.tensor, "deal");
  ConfigDocument::parse("[parallel]\nexpert = { size = 2, tensor = \"split\" }\n", "x.toml").read(config);
  EXPECT_EQ(config.parallel.expert.size, 2);
  EXPECT_TRUE(config.parallel.expert.splits());
  EXPECT_FALSE(config.parallel.expert.compresses());
  ConfigDocument::parse("[parallel]\nexpert = { size = 8, compress = \"fp8\", node = 4 }\n", "x.toml").read(config);
  EXPECT_TRUE(config.parallel.expert.compresses());
  EXPECT_EQ(config.parallel.expert.node, 4);
  EXPECT_THAT(test::thrown_message(
                  [&] { ConfigDocument::parse("[parallel.expert]\ncompress = \"int8\"\n", "x.toml").read(config); }),
              HasSubstr("fp8"));
  EXPECT_THAT(test::thrown_message(
                  [&] { ConfigDocument::parse("[parallel.expert]\ntensor = \"whole\"\n", "x.toml").read(config); }),
              HasSubstr("deal"));
}

TEST(ExpertConfig, AddsAnAxisOfRowsOnlyForSeveralRanks) {
  EXPECT_TRUE(expert_axes({}).empty());
  const auto axes = expert_axes({.size = 4});
  ASSERT_EQ(axes.size(), 1u);
  EXPECT_EQ(axes[0].name, "expert");
  EXPECT_EQ(axes[0].size, 4);
  EXPECT_EQ(axes[0].batch_split, tensor::BatchSplit::Rows);
  std::vector<std::string> names;
  for (const auto& axis : ParallelConfig{.data = 2, .expert = {.size = 4}, .sequence = {2, "ring"}}.axes())
    names.push_back(axis.name);
  EXPECT_THAT(names, ElementsAre("pipeline", "data", "expert", "sequence", "tensor"));
  names.clear();
  for (const auto& axis : ParallelConfig{.data = 2}.axes()) names.push_back(axis.name);
  EXPECT_THAT(names, ElementsAre("pipeline", "data", "tensor"));
}

// The rows that a rank reads follow from its replica, and the engine numbers them by its mesh.
TEST(ExpertConfig, NumbersReplicasLikeTheMesh) {
  const ParallelConfig config{
      .data = 2, .expert = {.size = 3}, .sequence = {2, "gather"}, .tensor = {.size = 2}, .pipeline = {.size = 2}};
  EXPECT_EQ(config.replicas(), 6);
  EXPECT_EQ(config.copies(), 12);
  EXPECT_EQ(config.expert_copies(), 4);
  ASSERT_EQ(config.ranks(), 48);
  for (int rank = 0; rank < 48; ++rank) {
    const auto world = comm::make_simulated_world(rank, 48);
    const comm::Mesh mesh(*world, config.axes());
    const tensor::MeshCoordinates& here = mesh.coordinates();
    EXPECT_EQ(config.replica_of(rank), here.index(here.row_axes())) << rank;
    EXPECT_EQ(config.replicas(), here.size(here.row_axes()));
    EXPECT_EQ(config.copies(), here.size(here.batch_axes()));
  }
}

TEST(ExpertConfig, DealsOutRowsOverDataAndExpert) {
  run::Config config;
  config.parallel.data = 2;
  config.parallel.expert.size = 2;
  config.training.batch_size = 16;
  config.training.accumulate = 2;
  const tensor::ReplicaRows rows = config.replica_rows(3);
  std::vector<int64_t> global;
  for (int64_t row = 0; row < rows.count(); ++row) global.push_back(rows.global(row));
  EXPECT_THAT(global, ElementsAre(6, 7, 14, 15));
}

TEST(ExpertConfig, RefusesCountsThatDoNotDivide) {
  const auto refusal = [](int64_t count, int64_t size) {
    return test::thrown_message([&] { check_experts(count, {.size = size}); });
  };
  EXPECT_EQ(refusal(6, 4),
            "[experts] count must divide by parallel.expert.size: got 6 experts on 4 ranks; the nearest are 4 and 8");
  EXPECT_EQ(refusal(3, 4),
            "[experts] count must divide by parallel.expert.size: got 3 experts on 4 ranks; the nearest is 4");
  EXPECT_NO_THROW(check_experts(8, {.size = 4}));
  EXPECT_NO_THROW(check_experts(5, {}));
  EXPECT_NO_THROW(check_experts(0, {}));
}

TEST(ExpertConfig, RefusesADenseModelBeforeMessages) {
  EXPECT_EQ(test::thrown_message([] { check_experts(0, {.size = 4}); }), kDense);
  comm::run_ranks(4, [](comm::World& world) {
    const ParallelConfig config{.expert = {.size = 4}};
    comm::Mesh mesh(world, config.axes());
    EXPECT_EQ(test::thrown_message(
                  [&] { distributed::DistributedModel(mesh, config, test::tiny_gpt2(), {at::kDouble, at::kCPU}, {}); }),
              kDense);
    EXPECT_EQ(world.traffic().total().calls, 0);
  });
}

TEST(ExpertConfig, RefusesToSplitExpertsInOtherTensorModes) {
  const ExpertConfig split{.tensor = "split"};
  EXPECT_NO_THROW(check_expert_tensor(split, {.size = 4}));
  const std::vector<TensorConfig> others{
      {.size = 4, .mode = "2d"}, {.size = 8, .mode = "2.5d", .depth = 2}, {.size = 8, .mode = "3d"}};
  for (const TensorConfig& tensor : others) {
    EXPECT_NO_THROW(check_expert_tensor({}, tensor));
    const std::string want =
        "[parallel] expert.tensor = \"split\" needs tensor.mode 1d, because the panels of other modes have equal rows: "
        "got " +
        tensor.mode + "; set expert.tensor = \"deal\"";
    EXPECT_EQ(test::thrown_message([&] { check_expert_tensor(split, tensor); }), want);
    run::Config config;
    config.parallel.tensor = tensor;
    config.parallel.expert = split;
    config.training.batch_size = 16;
    EXPECT_EQ(test::thrown_message([&] { config.validate(); }), want);
  }
}

TEST(ExpertConfig, RefusesNodesThatDoNotDivideTheRanksWithOtherExperts) {
  const auto refusal = [](const ExpertConfig& expert, const TensorConfig& tensor) {
    return test::thrown_message([&] { check_expert_node(expert, tensor); });
  };
  const std::string rule =
      "[parallel] expert.node must be at least 2 and divide the ranks that hold different experts: ";
  EXPECT_EQ(refusal({.size = 8, .node = 3}, {}), rule + "got 3 for 8 ranks; the nearest are 2 and 4");
  EXPECT_EQ(refusal({.size = 8, .node = 1}, {}), rule + "got 1 for 8 ranks; the nearest is 2");
  EXPECT_EQ(refusal({.size = 8, .node = 16}, {}), rule + "got 16 for 8 ranks; the nearest is 8");
  EXPECT_EQ(refusal({.size = 2, .node = 4}, {.size = 3}), rule + "got 4 for 6 ranks; the nearest are 3 and 6");
  EXPECT_EQ(refusal({.size = 2, .tensor = "split", .node = 4}, {.size = 4}),
            rule + "got 4 for 2 ranks; the nearest is 2");
  EXPECT_EQ(refusal({.node = 2}, {}),
            "[parallel] expert.node needs several ranks that hold different experts: got node 2 for 1 rank; leave it "
            "out");
  EXPECT_NO_THROW(check_expert_node({.size = 8, .node = 4}, {}));
  EXPECT_NO_THROW(check_expert_node({.node = 2}, {.size = 4, .mode = "2d"}));
  EXPECT_NO_THROW(check_expert_node({.size = 3}, {}));
  run::Config config;
  config.parallel.expert = {.size = 4, .node = 3};
  config.training.batch_size = 16;
  EXPECT_EQ(test::thrown_message([&] { config.validate(); }), rule + "got 3 for 4 ranks; the nearest are 2 and 4");
}

TEST(ExpertConfig, RefusesBatchSizesThatDoNotDivide) {
  run::Config config;
  config.parallel.data = 2;
  config.parallel.expert.size = 4;
  config.training.accumulate = 2;
  config.training.batch_size = 24;
  EXPECT_EQ(test::thrown_message([&] { config.validate(); }),
            "[training] batch_size must be divisible by parallel.data * parallel.expert.size * training.accumulate: "
            "got 24, 2 * 4 * 2; the nearest are 16 and 32");
  config.training.batch_size = 32;
  EXPECT_NO_THROW(config.validate());
  config.training.accumulate = 1;
  config.parallel.pipeline = {.size = 2, .micro_batches = 8};
  EXPECT_THAT(test::thrown_message([&] { config.validate(); }),
              HasSubstr("micro_batches must divide the 4 samples of a replica"));
}

// A group of 4 divides the 8 replicas of dense parameters, and not the 2 of an expert.
TEST(ExpertConfig, RefusesZeroGroupsThatDoNotDivideTheReplicasOfAnExpert) {
  run::Config config;
  config.parallel.data = 2;
  config.parallel.expert.size = 4;
  config.parallel.zero = 3;
  config.parallel.zero_group = 4;
  config.training.batch_size = 8;
  EXPECT_EQ(test::thrown_message([&] { config.validate(); }),
            "[parallel] zero_group must divide data * sequence.size: got 4 of 2 replicas of each expert; set it to 0 "
            "to shard over all");
  config.parallel.zero_group = 2;
  EXPECT_NO_THROW(config.validate());
}

}  // namespace
}  // namespace colossal::parallel::expert_config_test
