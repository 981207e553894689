// Frozen parameters keep their values and cause no gradients, states or messages. Other parameters train as they do if
// frozen ones have a learning rate of zero.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/account.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/memory_needs.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::frozen_parameters_test {
namespace {

using memory::Kind;
using testing::HasSubstr;

constexpr int64_t kSteps = 4;

/// Returns true for the first part of the model: with two stages, all parameters of the first stage.
bool is_frozen(const std::string& name) {
  return name.starts_with("embedding.") || name.starts_with("positions.") || name.starts_with("blocks.0.") ||
         name.starts_with("blocks.1.");
}

nn::Adapter frozen_beginning() {
  return {.treatment = [](const std::string& name) { return nn::Treatment{.trains = !is_frozen(name)}; }};
}

models::ModelShape four_blocks() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4;
  shape.tied = false;
  return shape;
}

run::Config config_of(const Layout& layout, const std::string& recompute = "none") {
  run::Config config = train::config_of(layout);
  config.precision.mode = "fp64";
  config.memory.recompute = recompute;
  config.training.clip = 0;  // the norm would include parameters with a learning rate of zero
  return config;
}

std::vector<double> losses_of(const run::Config& config, const nn::Adapter& adapter,
                              const std::function<void(Engine&)>& see = {}) {
  std::vector<double> losses;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, NamedModel{.shape = four_blocks(), .adapter = adapter});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = test::train_step(*engine, step, kText);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) losses.push_back(loss);
    }
    const std::lock_guard lock(mutex);
    if (see) see(*engine);
  });
  return losses;
}

/// One process that computes all gradients, and updates frozen parameters with a rate of zero.
std::vector<double> wanted() {
  run::Config config = config_of({});
  config.optimizer.groups = {{"embedding.*", "positions.*", "blocks.[01].*"}, {0, 0, 0}, {0, 0, 0}};
  return losses_of(config, {});
}

struct Case {
  Layout layout;
  std::string schedule = "1f1b", recompute = "none";
  bool has_tiers = false;
};

class FrozenParameters : public testing::TestWithParam<Case> {};

TEST_P(FrozenParameters, KeepValuesAndOthersTrainAsWithRateZero) {
  const Case& c = GetParam();
  run::Config config = config_of(c.layout, c.recompute);
  config.parallel.pipeline.schedule = c.schedule;
  const test::TemporaryFolder folder;
  if (c.has_tiers) config.memory.disk = folder.path(), config.memory.host = int64_t{1} << 30;
  const std::vector<double> want = wanted();
  const std::vector<double> got = losses_of(config, frozen_beginning(), [](Engine& engine) {
    for (const nn::Parameter& p : engine.parameters()) {
      EXPECT_EQ(p.value.requires_grad(), !is_frozen(p.name)) << p.name;
      if (is_frozen(p.name)) EXPECT_FALSE(p.value.grad().defined()) << p.name;
    }
    for (const memory::Shard& shard : engine.store().shards())
      for (const memory::Piece& piece : shard.pieces()) EXPECT_FALSE(is_frozen(piece.parameter->name));
  });
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << "step " << i;
  EXPECT_GT(std::abs(want.front() - want.back()), 1e-3) << "something trains";
}

INSTANTIATE_TEST_SUITE_P(Layouts, FrozenParameters,
                         testing::Values(Case{{.name = "One"}}, Case{{.name = "OneRecomputed"}, "1f1b", "block"},
                                         Case{{.name = "Zero1", .zero = 1, .data = 2}},
                                         Case{{.name = "Zero2", .zero = 2, .data = 2}},
                                         Case{{.name = "Zero3", .zero = 3, .data = 2}, "1f1b", "block"},
                                         Case{{.name = "Tensor", .tensor = 2}},
                                         Case{{.name = "Pipeline", .pipeline = 2}},
                                         Case{{.name = "PipelineRecomputed", .pipeline = 2}, "1f1b", "block"},
                                         Case{{.name = "Interleaved", .pipeline = 2}, "interleaved"},
                                         Case{{.name = "ZeroBubble", .pipeline = 2}, "zero-bubble-h1"},
                                         Case{{.name = "ZeroBubbleV", .pipeline = 2}, "zero-bubble-v"},
                                         Case{{.name = "Chimera", .pipeline = 2}, "chimera"},
                                         Case{{.name = "PipelineZero3", .zero = 3, .data = 2, .pipeline = 2}},
                                         Case{{.name = "Tiers"}, "1f1b", "block", true},
                                         Case{{.name = "TiersZero3", .zero = 3, .data = 2}, "1f1b", "block", true},
                                         Case{{.name = "TiersPipeline", .pipeline = 2}, "1f1b", "none", true}),
                         [](const auto& info) { return info.param.layout.name; });

// Runs an optimizer for whole tensors on a rank that has no parameter to update.
TEST(FrozenStages, TrainWithEveryOptimizer) {
  for (const char* rule : {"adamw", "sgd", "lion", "lamb", "lars", "adafactor", "came", "galore", "muon"}) {
    run::Config config = config_of({.pipeline = 2, .optimizer = rule});
    if (config.optimizer.name == "galore") config.optimizer.rank = 4;
    const std::vector<double> want = losses_of(
        [&] {
          run::Config one = config;
          one.parallel.pipeline.size = 1;
          return one;
        }(),
        frozen_beginning());
    const std::vector<double> got = losses_of(config, frozen_beginning());
    ASSERT_EQ(got.size(), want.size()) << rule;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-8) << rule;
  }
}

TEST(FrozenStages, RunNoBackwardPassAndReceiveNoGradient) {
  std::map<int, double> sent;  // along the pipeline in backward, by rank
  run::Config config = config_of({.pipeline = 2});
  config.parallel.pipeline.layers_per_stage = {2, 2};
  losses_of(config, frozen_beginning(), [&](Engine& engine) {
    const int rank = engine.mesh().index("pipeline");
    sent[rank] = engine.mesh().world().traffic().total("pipeline", "", comm::Phase::Backward).elements;
    const auto& steps = engine.distributed().executor().schedule().ranks[rank];
    const auto count = [&](schedule::Action action) {
      return std::count_if(steps.begin(), steps.end(), [&](const auto& step) { return step.action == action; });
    };
    EXPECT_EQ(count(schedule::Action::Backward) > 0, rank == 1);
    EXPECT_EQ(count(schedule::Action::SendBackward) + count(schedule::Action::ReceiveBackward), 0);
    EXPECT_GT(count(schedule::Action::SendForward) + count(schedule::Action::ReceiveForward), 0);
    for (const schedule::Event& event : engine.distributed().executor().events())
      EXPECT_TRUE(rank == 1 || !schedule::is_backward(event.step.action));
  });
  EXPECT_EQ(sent, (std::map<int, double>{{0, 0}, {1, 0}}));
}

struct Bytes {
  int64_t parameters = 0, gradients = 0, states = 0;
};

/// The memory of rank 0 of a run between backward and update.
Bytes bytes_of(const run::Config& config, const nn::Adapter& adapter) {
  Bytes bytes;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const memory::Account account;
    const auto engine = initialize(world, config, NamedModel{.shape = four_blocks(), .adapter = adapter});
    const Bytes first{account.usage().of(Kind::Parameters), 0, account.usage().of(Kind::States)};
    engine->zero_grad();
    engine->train_step(test::own_batch(*engine, 0, kText));
    if (world.rank() == 0) bytes = {first.parameters, account.usage().of(Kind::Gradients), first.states};
  });
  return bytes;
}

TEST(FrozenParameters, HaveNoGradientsMasterWeightsOrStates) {
  for (const int64_t zero : {0, 1, 2, 3}) {
    run::Config config = config_of({.zero = zero, .data = 2});
    config.precision.mode = "bf16";
    const Bytes all = bytes_of(config, {}), some = bytes_of(config, frozen_beginning());
    EXPECT_LT(some.gradients, all.gradients) << zero;
    EXPECT_LT(some.states, all.states) << zero;
    std::map<std::string, int64_t> needs;
    for (const MemoryNeed& need :
         memory_needs({config, NamedModel{.shape = four_blocks(), .adapter = frozen_beginning()}}, 0))
      needs[need.what] = need.bytes;
    EXPECT_EQ(some.parameters, needs[kFrozenParameters] + needs["parameters"]) << zero;
    EXPECT_EQ(some.gradients, needs["gradients"]) << zero;
    EXPECT_EQ(some.states, needs["masters"] + needs["states"]) << zero;
    int64_t trained = 0;
    comm::run_ranks(1, [&](comm::World& world) {
      run::Config one = config_of({});
      trained = initialize(world, one, NamedModel{.shape = four_blocks(), .adapter = frozen_beginning()})
                    ->parameters()
                    .trained_numel();
    });
    // Master weights and two moments in fp32; padding is less than a sixteenth of these chunks
    const int64_t sharers = zero == 0 ? 1 : 2;
    EXPECT_GE(some.states, trained * 12 / sharers) << zero;
    EXPECT_LE(some.states, trained * 13 / sharers) << zero;
  }
}

TEST(FrozenParameters, RefuseAModelWithoutTrainedParameters) {
  const nn::Adapter nothing{.treatment = [](const std::string&) { return nn::Treatment{.trains = false}; }};
  EXPECT_THAT(test::thrown_message([&] { losses_of(config_of({.pipeline = 2}), nothing); }),
              HasSubstr("[model] at least one parameter must be trained"));
}

TEST(FrozenParameters, RefuseAGroupWithoutTrainedParameters) {
  run::Config config = config_of({.pipeline = 2});
  config.optimizer.groups.parameters = {"blocks.0.*"};
  EXPECT_THAT(test::thrown_message([&] { losses_of(config, frozen_beginning()); }),
              HasSubstr("[optimizer] only frozen parameters belong to group blocks.0.*"));
}

// ------------------------------------------------------------------------------------------------------ not saved

nn::Adapter unsaved_beginning() {
  return {.treatment = [](const std::string& name) { return nn::Treatment{!is_frozen(name), !is_frozen(name)}; }};
}

TEST(UnsavedParameters, ResumeBitwise) {
  const std::string folder = test::empty_folder("unsaved");
  const run::Config config = config_of({});
  std::vector<double> whole, resumed;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config, NamedModel{.shape = four_blocks(), .adapter = unsaved_beginning()});
    test::train(*engine, 0, 3, kText);
    test::save(*engine, folder);
    for (const auto& t : engine->state().tensors) EXPECT_THAT(t.name, testing::Not(HasSubstr("blocks.0."))) << t.name;
    whole = test::train(*engine, 3, 6, kText);
  });
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config, NamedModel{.shape = four_blocks(), .adapter = unsaved_beginning()});
    test::load(*engine, folder);
    resumed = test::train(*engine, 3, 6, kText);
  });
  EXPECT_EQ(resumed, whole);
}

TEST(UnsavedParameters, RefuseAnotherSeedOrFolder) {
  const std::string folder = test::empty_folder("origin");
  const auto with = [&](const run::Config& config, const auto& work) {
    return test::thrown_message([&] {
      comm::run_ranks(1, [&](comm::World& world) {
        const auto engine =
            initialize(world, config, NamedModel{.shape = four_blocks(), .adapter = unsaved_beginning()});
        work(*engine);
      });
    });
  };
  const auto resume = [&](Engine& engine) { test::load(engine, folder); };
  run::Config config = config_of({});
  EXPECT_EQ(with(config, [&](Engine& engine) { test::save(engine, folder); }), "");
  config.training.seed = 7;
  EXPECT_THAT(with(config, resume), HasSubstr("training.seed = 1: this run has 7; resume with training.seed = 1"));
  config.training.seed = 1;
  EXPECT_EQ(with(config, resume), "");
  config.model.from = "elsewhere";
  EXPECT_THAT(with(config, resume), HasSubstr("model.from = \"\": this run has \"elsewhere\""));
}

}  // namespace
}  // namespace colossal::train::frozen_parameters_test
