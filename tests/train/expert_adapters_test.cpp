// Training with adapters of experts over `parallel.expert` and each other part of a layout equals one process, and only
// gradients of adapters are communicated in addition.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/low_rank.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/schedule/make.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::expert_adapters_test {
namespace {

using testing::HasSubstr;

constexpr test::Text kText{.vocabulary = 37};
constexpr int64_t kSteps = 2;
constexpr double kLimit = 1e-10;  // rounding alone stays far below it in fp64

models::ModelShape mixture(int64_t layers) {
  models::ModelShape shape = test::tiny_llama();
  models::LlamaSizes own;
  own.experts = {.count = 4, .used = 2, .ffn = 12, .capacity = 1.1, .balance_loss = 0.05, .z_loss = 0.01};
  own.experts.bias = true;
  own.experts.bias_rate = 0.001;
  shape.layers = layers;
  shape.own = own;
  shape.set(models::MixtureSizes{own.experts.count});
  return shape;
}

nn::Adapter adapter_of(const models::ModelShape& shape, const std::vector<std::string>& targets) {
  return run::low_rank_adapter({.kind = "lora", .rank = 2, .alpha = 3, .targets = targets}, shape);
}

run::Config serial_config(int64_t micro_batches) {
  run::Config c = test::course_config();
  c.training.accumulate = micro_batches;
  c.optimizer.learning_rate = 0.01;
  c.optimizer.warmup_steps = 0;
  c.optimizer.epsilon = 1e-6;  // a gradient that is zero except for rounding must not become a whole step
  return c;
}

using Tensors = std::map<std::string, at::Tensor>;

/// Losses, and the whole state after the first step, which has the gradients in its moments.
struct Course {
  std::vector<double> losses;
  Tensors states;
};

struct Model {
  models::ModelShape shape;
  std::vector<std::string> targets{"all-linear", "experts"};
};

std::vector<double> losses_of(const run::Config& config, const Model& model,
                              const std::function<void(Engine&, int64_t step)>& see) {
  std::vector<double> losses;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const NamedModel named{.shape = model.shape, .adapter = adapter_of(model.shape, model.targets)};
    const auto engine = initialize(world, config, named);
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = test::train_step(*engine, step, kText);
      if (world.rank() == 0) losses.push_back(loss);
      const std::lock_guard lock(mutex);
      see(*engine, step);
    }
  });
  return losses;
}

Course serial(const Model& model, const run::Config& config) {
  Course course;
  course.losses = losses_of(config, model, [&](Engine& engine, int64_t step) {
    for (const checkpoint::NamedTensor& t : engine.state().tensors)
      if (step == 0) test::put_part(course.states[t.name], t);
    for (const nn::Parameter& p : engine.parameters())
      if (step + 1 == kSteps && nn::is_low_rank(p.name)) EXPECT_GT(p.value.abs().max().item<double>(), 0) << p.name;
  });
  EXPECT_TRUE(course.states.contains("model.blocks.0.mlp.experts.gate_up.adapter_b"));
  return course;
}

/// Returns the course of the mixture in one process. Each is computed once.
const Course& serial(int64_t layers, int64_t micro_batches) {
  static std::map<std::pair<int64_t, int64_t>, Course> known;
  Course& course = known[{layers, micro_batches}];
  if (course.losses.empty()) course = serial({mixture(layers)}, serial_config(micro_batches));
  return course;
}

/// The losses, and the state of each rank after the first step, must equal `want`.
void expect_course(const run::Config& config, const Model& model, const Course& want, const std::string& what) {
  const std::vector<double> losses = losses_of(config, model, [&](Engine& engine, int64_t step) {
    if (step > 0) return;
    for (const checkpoint::NamedTensor& t : engine.state().tensors) {
      const at::Tensor whole = test::local_part(want.states.at(t.name), t, engine.mesh().coordinates());
      EXPECT_LE((t.value.clone() - whole).abs().max().item<double>(), kLimit) << what << ": " << t.name;
    }
  });
  ASSERT_EQ(losses.size(), want.losses.size()) << what;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], want.losses[i], kLimit) << what << ", step " << i;
}

void expect_course(const run::Config& config, int64_t layers, const std::string& what) {
  expect_course(config, {mixture(layers)}, serial(layers, config.micro_batches()), what);
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
  for (const parallel::TensorConfig& tensor :
       std::vector<parallel::TensorConfig>{{.size = 3},
                                           {.size = 2, .sequence = true},
                                           {.size = 4, .mode = "2d"},
                                           {.size = 4, .mode = "2.5d", .depth = 1},
                                           {.size = 8, .mode = "3d"}}) {
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

// A dense block, shared experts and groups; optimizers that take each expert as a matrix.
TEST(ExpertAdapters, EqualOneProcessInOtherFamiliesAndOptimizers) {
  models::ModelShape shape = test::tiny_deepseek();
  shape.vocabulary = kText.vocabulary;
  const Model deepseek{shape, {"experts"}};
  run::Config config = serial_config(2);
  config.optimizer.name = "muon";
  const Course want = [&] {
    Course course;
    course.losses = losses_of(config, deepseek, [&](Engine& engine, int64_t step) {
      for (const checkpoint::NamedTensor& t : engine.state().tensors)
        if (step == 0) test::put_part(course.states[t.name], t);
    });
    return course;
  }();
  config.parallel.expert.size = 2;
  config.parallel.tensor.size = 2;
  config.parallel.data = 2;
  config.parallel.zero = 3;
  expect_course(config, deepseek, want, "deepseek");
}

// Tokens are dispatched once, whatever experts have.
TEST(ExpertAdapters, CommunicateInForwardAsWithoutThem) {
  std::map<std::string, comm::Traffic::Count> counts;
  for (const std::string targets : {"all-linear", "experts"})
    comm::run_ranks(2, [&](comm::World& world) {
      const models::ModelShape shape = mixture(2);
      const NamedModel named{.shape = shape, .adapter = adapter_of(shape, {targets})};
      const auto engine = initialize(world, over_experts(1), named);
      test::train_step(*engine, 0, kText);
      if (world.rank() == 0) counts[targets] = world.traffic().total("", "", comm::Phase::Forward);
    });
  EXPECT_GT(counts["experts"].calls, 0);
  EXPECT_EQ(counts["experts"].calls, counts["all-linear"].calls);
  EXPECT_EQ(counts["experts"].bytes, counts["all-linear"].bytes);
}

TEST(ExpertAdapters, StartWithTheLossOfTheModelAndResumeUnderAnotherLayout) {
  const std::string folder = test::empty_folder("expert_adapters");
  const models::ModelShape shape = mixture(2);
  const nn::Adapter adapter = adapter_of(shape, {"experts"});
  std::vector<double> whole;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto plain = initialize(world, serial_config(2), shape);
    const auto engine = initialize(world, serial_config(2), NamedModel{.shape = shape, .adapter = adapter});
    EXPECT_EQ(test::train_step(*engine, 0, kText), test::train_step(*plain, 0, kText)) << "to the bit";
    test::train(*engine, 1, 3, kText);
    test::save(*engine, folder);
    for (const checkpoint::NamedTensor& t : engine->state().tensors)
      EXPECT_THAT(t.name, testing::ContainsRegex("experts[.].*[.]adapter_[ab]|router[.]bias"));
    whole = test::train(*engine, 3, 5, kText);
  });
  run::Config config = over_experts();
  config.parallel.data = 2;
  config.parallel.zero = 3;
  config.parallel.tensor.size = 2;
  config.parallel.expert.tensor = "split";
  std::vector<double> resumed;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, NamedModel{.shape = shape, .adapter = adapter});
    test::load(*engine, folder);
    const std::vector<double> losses = test::train(*engine, 3, 5, kText);
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
