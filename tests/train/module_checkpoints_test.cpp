// What a checkpoint of a user-defined module holds beside its tensors: random generators and a value of the caller's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <filesystem>
#include <mutex>
#include <optional>

#include "colossal/base/json.h"
#include "colossal/base/run_folder.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/generator_states.h"
#include "colossal/train/module_training.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::module_checkpoints_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int64_t kWidth = 6;

/// A layer with dropout, whose draws decide every later value.
struct Dropping : torch::nn::Module {
  Dropping() {
    weight = register_parameter("weight", at::arange(kWidth * kWidth, at::kFloat).sin().view({kWidth, kWidth}));
  }
  at::Tensor loss() { return torch::dropout(torch::linear(at::ones({4, kWidth}), weight), 0.5, true).square().mean(); }
  at::Tensor weight;
};

run::Config config_of(int64_t ranks, int64_t zero = 0) {
  run::Config config;
  config.run.device = "cpu";
  config.parallel.data = ranks;
  config.parallel.zero = zero;
  config.precision.mode = "fp32";
  config.optimizer.warmup_steps = 0;
  config.training.batch_size = ranks;
  config.training.steps = 10;
  return config;
}

void train(ModuleTraining& training, Dropping& module, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    training.zero_grad();
    training.backward(module.loss());
    training.step();
  }
}

at::Tensor state_of_cpu() { return at::globalContext().defaultGenerator(at::kCPU).get_state(); }

TEST(ModuleCheckpoints, ContinueDropoutBitwise) {
  comm::run_ranks(1, [](comm::World& world) {
    test::TemporaryFolder folder;
    torch::manual_seed(7);
    Dropping whole, resumed;
    const auto first = initialize(world, whole, config_of(1));
    train(*first, whole, 3);
    first->save(folder / "run");
    train(*first, whole, 3);
    torch::manual_seed(8);
    const auto second = initialize(world, resumed, config_of(1));
    ASSERT_TRUE(second->resume(folder / "run"));
    train(*second, resumed, 3);
    test::expect_equal(resumed.weight.detach(), whole.weight.detach(), "weight");
  });
}

TEST(ModuleCheckpoints, ReturnTheCallersValueOnAllRanks) {
  test::TemporaryFolder folder;
  const json extra = {{"epoch", 3}, {"files", {"a", "b"}}};
  comm::run_ranks(2, [&](comm::World& world) {
    Dropping module;
    const auto training = initialize(world, module, config_of(2, 3));
    EXPECT_FALSE(training->resume(folder / "run"));
    train(*training, module, 2);
    training->save(folder / "run", world.rank() == 0 ? extra : json("the value of another rank"));
  });
  for (const int ranks : {1, 2})
    comm::run_ranks(ranks, [&](comm::World& world) {
      Dropping module;
      const auto training = initialize(world, module, config_of(ranks));
      const std::optional<Resumed> resumed = training->resume(folder / "run");
      ASSERT_TRUE(resumed);
      EXPECT_EQ(resumed->step, 2);
      EXPECT_EQ(resumed->extra, extra);
      training->save(folder / "other");
      EXPECT_TRUE(training->load(folder / "other").extra.is_null());
    });
}

TEST(ModuleCheckpoints, RestoreGeneratorsOnTheSameNumberOfRanksOnly) {
  test::TemporaryFolder folder;
  torch::manual_seed(5);
  const at::Tensor saved = state_of_cpu();
  comm::run_ranks(2, [&](comm::World& world) {
    Dropping module;
    initialize(world, module, config_of(2))->save(folder / "run");
  });
  for (const int ranks : {1, 2}) {
    torch::manual_seed(6);
    comm::run_ranks(ranks, [&](comm::World& world) {
      Dropping module;
      initialize(world, module, config_of(ranks))->load(folder / "run");
    });
    EXPECT_EQ(at::equal(state_of_cpu(), saved), ranks == 2) << ranks;
  }
}

TEST(ModuleCheckpoints, HaveOneWriterOfAFolder) {
  test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "run/checkpoints");
  std::optional<RunLock> other(folder / "run");  // of `colossal train`, for instance
  comm::run_ranks(2, [&](comm::World& world) {
    Dropping module;
    const auto training = initialize(world, module, config_of(2));
    for (const char* name : {"run", "run/checkpoints"}) {
      EXPECT_THAT(test::thrown_message([&] { training->save(folder / name); }),
                  HasSubstr("[run] another run is writing to " + (folder / "run")));
      EXPECT_FALSE(training->resume(folder / name)) << "a reader needs no lock";
    }
    training->save(folder / "own");
  });
  other.reset();
  comm::run_ranks(2, [&](comm::World& world) {
    Dropping module;
    initialize(world, module, config_of(2))->save(folder / "run");
  });
}

TEST(ModuleCheckpoints, TellChangesOfTheTraining) {
  test::TemporaryFolder folder;
  comm::run_ranks(1, [&](comm::World& world) {
    Dropping module, other;
    run::Config config = config_of(1);
    initialize(world, module, config)->save(folder / "run");
    config.training.steps = 20;
    config.training.keep_last = 5;
    const std::optional<Resumed> resumed = initialize(world, other, config)->resume(folder / "run");
    ASSERT_TRUE(resumed);
    EXPECT_EQ(resumed->changes, "training.steps = 10 -> 20");
  });
}

TEST(GeneratorStates, GiveEachRankItsOwn) {
  // Ranks of this test share the generator of their process, so they take turns.
  json states = json::array();
  std::vector<at::Tensor> wanted;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto alone = world.make_group("alone", {0});
    for (const uint64_t seed : {11, 12}) {
      torch::manual_seed(seed);
      at::randn({3});
      wanted.push_back(state_of_cpu());
      states.push_back(gathered_generators(*alone, at::kCPU).at(0));
    }
  });
  std::mutex turn;
  comm::run_ranks(2, [&](comm::World& world) {
    const auto both = world.make_group("both", {0, 1});
    const std::lock_guard lock(turn);
    restore_generators(states, *both, at::kCPU);
    EXPECT_TRUE(at::equal(state_of_cpu(), wanted[static_cast<size_t>(world.rank())])) << world.rank();
  });
}

TEST(GeneratorStates, RefuseDamagedStates) {
  comm::run_ranks(1, [](comm::World& world) {
    const auto alone = world.make_group("alone", {0});
    const at::Tensor before = state_of_cpu();
    const auto refusal = [&](const json& all) {
      return test::thrown_message([&] { restore_generators(all, *alone, at::kCPU); });
    };
    EXPECT_EQ(refusal({}), "");
    EXPECT_THAT(refusal({{"cpu", "00"}}),
                HasSubstr("its generators must be a list with an element for each rank: got"));
    EXPECT_THAT(refusal(json::array({{{"cpu", "0g"}}})), HasSubstr("must be hex digits: got another value for cpu"));
    EXPECT_THAT(refusal(json::array({{{"cpu", 5}}})), HasSubstr("must be hex digits: got another value for cpu"));
    EXPECT_THAT(refusal(json::array({{{"cpu", "00"}}})), HasSubstr("LibTorch refuses the state of generator cpu: "));
    EXPECT_TRUE(at::equal(state_of_cpu(), before));
  });
}

}  // namespace
}  // namespace colossal::train::module_checkpoints_test
