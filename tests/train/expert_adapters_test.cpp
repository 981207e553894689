// Training with adapters of experts over `parallel.expert` and each other part of a layout equals one process, and only
// gradients of adapters are communicated in addition.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/schedule/make.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/adapter_courses.h"
#include "train/mixtures.h"

namespace colossal::train::expert_adapters_test {
namespace {

using testing::HasSubstr;

constexpr double kLimit = 1e-10;  // rounding alone stays far below it in fp64

NamedModel adapted(const models::ModelShape& shape, const std::vector<std::string>& targets = {"all-linear", "experts"},
                   const std::string& base = "model") {
  return {.shape = shape,
          .adapter =
              run::low_rank_adapter({.kind = "lora", .rank = 2, .alpha = 3, .targets = targets, .base = base}, shape)};
}

run::Config serial_config(int64_t micro_batches) {
  run::Config c = test::course_config();
  c.training.accumulate = micro_batches;
  c.optimizer.learning_rate = 0.01;
  c.optimizer.warmup_steps = 0;
  c.optimizer.epsilon = 1e-6;  // a gradient that is zero except for rounding must not become a whole step
  return c;
}

/// Returns the course of the mixture in one process. Each is computed once.
const AdapterCourse& serial(int64_t layers, int64_t micro_batches) {
  static std::map<std::pair<int64_t, int64_t>, AdapterCourse> known;
  AdapterCourse& course = known[{layers, micro_batches}];
  if (course.losses.empty())
    course = adapter_course(serial_config(micro_batches), adapted(mixture(layers)), kMixtureText);
  EXPECT_TRUE(course.states.contains("model.blocks.0.mlp.experts.gate_up.adapter_b"));
  return course;
}

void expect_course(const run::Config& config, int64_t layers, const std::string& what) {
  expect_adapter_course(config, adapted(mixture(layers)), kMixtureText, serial(layers, config.micro_batches()), what);
}

run::Config over_experts(int64_t micro_batches = 2) {
  run::Config config = serial_config(micro_batches);
  config.parallel.expert.size = 2;
  return config;
}

TEST(ExpertAdapters, EqualOneProcessInEveryZeroStageAndRecomputation) {
  for (const auto& [zero, recompute] : std::vector<std::pair<int64_t, std::string>>{
           {0, "none"}, {1, "selective"}, {2, "none"}, {3, "block"}, {3, "selective"}}) {
    run::Config config = over_experts();
    config.parallel.data = 2;
    config.parallel.zero = zero;
    config.memory.recompute = recompute;
    expect_course(config, 2, concat("zero ", zero, ", recompute ", recompute));
  }
  run::Config replicated = serial_config(2);  // no rank of experts: each has all of them
  replicated.parallel.data = 2;
  replicated.parallel.zero = 3;
  expect_course(replicated, 2, "data alone");
}

TEST(ExpertAdapters, EqualOneProcessInEverySequenceMode) {
  for (const parallel::SequenceConfig& sequence : test::sequence_modes()) {
    run::Config config = over_experts();
    config.parallel.sequence = sequence;
    expect_course(config, 2, "sequence " + sequence.mode);
  }
}

TEST(ExpertAdapters, EqualOneProcessInEveryTensorMode) {
  for (const parallel::TensorConfig& tensor : mixture_tensor_modes()) {
    run::Config config = over_experts(1);
    config.parallel.tensor = tensor;
    expect_course(config, 2, test::name_of(tensor));
  }
  for (const bool sequence : {false, true}) {
    run::Config split = over_experts(1);
    split.parallel.tensor = {.size = 2, .sequence = sequence};
    split.parallel.expert.tensor = "split";
    expect_course(split, 2, concat("split, sequence ", sequence));
  }
}

TEST(ExpertAdapters, EqualOneProcessInPipelines) {
  for (const schedule::Family& family : {schedule::families().front(), schedule::families().back()}) {
    run::Config config = over_experts(1);
    config.parallel.pipeline = {.size = 2, .schedule = family.name, .micro_batches = 4};
    expect_course(config, 4, family.name);
  }
}

TEST(ExpertAdapters, EqualOneProcessOnDisk) {
  const test::TemporaryFolder folder;
  run::Config config = over_experts();
  config.memory.disk = folder.path();
  config.memory.host = int64_t{1} << 30;
  config.memory.recompute = "block";
  expect_course(config, 2, "tiers");
}

// The frozen matrices of experts are codes, one by one. Their values do not depend on the layout.
TEST(ExpertAdapters, EqualOneProcessWithCodes) {
  const test::TemporaryFolder folder;
  const auto config_of = [](const std::function<void(run::Config&)>& change) {
    run::Config config = over_experts(1);
    change(config);
    return config;
  };
  const std::vector<std::pair<std::string, run::Config>> layouts{
      {"zero 3", config_of([](run::Config& c) { c.parallel.data = 2, c.parallel.zero = 3; })},
      {"tensor", config_of([](run::Config& c) { c.parallel.tensor.size = 3; })},
      {"split", config_of([](run::Config& c) {
         c.parallel.tensor = {.size = 2, .sequence = true};
         c.parallel.expert.tensor = "split";
       })},
      {"2d", config_of([](run::Config& c) { c.parallel.tensor = {.size = 4, .mode = "2d"}; })},
      {"tiers", config_of([&](run::Config& c) {
         c.memory.disk = folder.path();
         c.memory.host = int64_t{1} << 30;
         c.memory.recompute = "block";
       })}};
  for (const std::string base : {"bf16", "int8", "nf4"}) {
    const NamedModel model = adapted(mixture(2), {"all-linear", "experts"}, base);
    const AdapterCourse want = adapter_course(serial_config(1), model, kMixtureText);
    EXPECT_GT(std::abs(want.losses.front() - serial(2, 1).losses.front()), 1e-9) << "codes are not the values";
    for (const auto& [name, config] : layouts)
      if (base == "nf4" || name == "split")
        expect_adapter_course(config, model, kMixtureText, want, base + ", " + name);
  }
}

// A dense block, shared experts and groups; optimizers that take each expert as a matrix.
TEST(ExpertAdapters, EqualOneProcessInOtherFamiliesAndOptimizers) {
  models::ModelShape shape = test::tiny_deepseek();
  shape.vocabulary = kMixtureText.vocabulary;
  const NamedModel deepseek = adapted(shape, {"experts"});
  run::Config config = serial_config(2);
  config.optimizer.name = "muon";
  const AdapterCourse want = adapter_course(config, deepseek, kMixtureText);
  config.parallel.expert.size = 2;
  config.parallel.tensor.size = 2;
  config.parallel.data = 2;
  config.parallel.zero = 3;
  expect_adapter_course(config, deepseek, kMixtureText, want, "deepseek");
}

// Tokens are dispatched once, whatever experts have.
TEST(ExpertAdapters, CommunicateInForwardAsWithoutThem) {
  std::map<std::string, comm::Traffic::Count> counts;
  for (const std::string targets : {"all-linear", "experts"})
    comm::run_ranks(2, [&](comm::World& world) {
      const auto engine = initialize(world, over_experts(1), adapted(mixture(2), {targets}));
      test::train_step(*engine, 0, kMixtureText);
      if (world.rank() == 0) counts[targets] = world.traffic().total("", "", comm::Phase::Forward);
    });
  EXPECT_GT(counts["experts"].calls, 0);
  EXPECT_EQ(counts["experts"].calls, counts["all-linear"].calls);
  EXPECT_EQ(counts["experts"].bytes, counts["all-linear"].bytes);
}

TEST(ExpertAdapters, StartWithTheLossOfTheModelAndResumeUnderAnotherLayout) {
  const std::string folder = test::empty_folder("expert_adapters");
  const NamedModel model = adapted(mixture(2), {"experts"});
  std::vector<double> whole;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto plain = initialize(world, serial_config(2), model.shape);
    const auto engine = initialize(world, serial_config(2), model);
    EXPECT_EQ(test::train_step(*engine, 0, kMixtureText), test::train_step(*plain, 0, kMixtureText)) << "to the bit";
    test::train(*engine, 1, 3, kMixtureText);
    test::save(*engine, folder);
    for (const checkpoint::NamedTensor& t : engine->state().tensors)
      EXPECT_THAT(t.name, testing::ContainsRegex("experts[.].*[.]adapter_[ab]|router[.]bias"));
    whole = test::train(*engine, 3, 5, kMixtureText);
  });
  run::Config config = over_experts();
  config.parallel.data = 2;
  config.parallel.zero = 3;
  config.parallel.tensor.size = 2;
  config.parallel.expert.tensor = "split";
  std::vector<double> resumed;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, model);
    test::load(*engine, folder);
    const std::vector<double> losses = test::train(*engine, 3, 5, kMixtureText);
    if (world.rank() == 0) resumed = losses;
  });
  ASSERT_EQ(resumed.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(resumed[i], whole[i], kLimit) << i;
}

TEST(ExpertAdapters, RefuseDropoutAndMagnitudes) {
  const models::ModelShape shape = mixture(1);
  const auto message = [&](run::LowRankKeys keys) {
    keys.rank = 2;
    keys.targets = {"all-linear", "experts"};
    return test::thrown_message([&] { run::low_rank_adapter(keys, shape); });
  };
  EXPECT_EQ(message({.kind = "lora"}), "");
  EXPECT_THAT(message({.kind = "lora", .dropout = 0.1}),
              HasSubstr("adapters of experts must be of adapter.kind = \"lora\" with adapter.dropout = 0, as in peft"));
  EXPECT_THAT(message({.kind = "dora"}), HasSubstr("got kind dora and dropout 0 for blocks.0.mlp.experts."));
}

}  // namespace
}  // namespace colossal::train::expert_adapters_test
