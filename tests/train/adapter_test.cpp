// Training with low-rank adapters under every layout equals one process. Only gradients of adapters are communicated,
// and checkpoints resume under another layout.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <set>

#include "colossal/base/error.h"
#include "colossal/infer/generate.h"
#include "colossal/nn/low_rank.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/schedule/make.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::adapter_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 4;

nn::Adapter low_rank() {
  return {.treatment =
              [](const std::string& name) {
                return nn::Treatment{.trains = nn::is_low_rank(name), .saved = nn::is_low_rank(name)};
              },
          .product =
              [](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
                return weight.hidden_matrix ? nn::with_low_rank(product, weight, parameters, {.rank = 2}) : product;
              }};
}

/// A model with grouped queries, whose keys and values several ranks may hold, and a fused gate.
models::ModelShape shape_of_all() {
  models::ModelShape shape = test::tiny_llama();
  shape.layers = 4;
  return shape;
}

/// A batch whose rows divide evenly under every layout.
constexpr test::Text kRows{.rows = 36, .vocabulary = 37};

run::Config config_of(const parallel::TensorConfig& tensor = {}) {
  run::Config config = test::course_config();
  config.parallel.tensor = tensor;
  config.training.batch_size = kRows.rows;
  config.data.sequence = 12;  // divisible by the ranks of every mode
  config.optimizer.warmup_steps = 0;
  config.optimizer.learning_rate = 0.01;
  config.optimizer.epsilon = 1e-6;  // a gradient that is zero except for rounding must not become a whole step
  return config;
}

std::vector<double> losses_of(const run::Config& config, const std::function<void(Engine&)>& see = {}) {
  std::vector<double> losses;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, NamedModel{.shape = shape_of_all(), .adapter = low_rank()});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = test::train_step(*engine, step, kRows);
      if (world.rank() == 0) losses.push_back(loss);
    }
    const std::lock_guard lock(mutex);
    if (see) see(*engine);
  });
  return losses;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << what << ", step " << i;
}

std::vector<double> wanted() {
  const std::vector<double> want = losses_of(config_of(), [](Engine& engine) {
    for (const nn::Parameter& p : engine.parameters())
      if (p.name.ends_with(".adapter_b")) EXPECT_GT(p.value.abs().max().item<double>(), 0) << p.name << " trains";
  });
  EXPECT_GT(std::abs(want.front() - want.back()), 1e-4);
  return want;
}

class AdapterModes : public testing::TestWithParam<parallel::TensorConfig> {};

TEST_P(AdapterModes, EqualOneProcess) {
  expect_near(losses_of(config_of(GetParam())), wanted(), test::name_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Modes, AdapterModes, testing::ValuesIn(test::tensor_modes()),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(Adapter, EqualsOneProcessUnderPipelinesZeroAndTiers) {
  const std::vector<double> want = wanted();
  for (const int64_t zero : {1, 2, 3}) {
    run::Config config = config_of();
    config.parallel.data = 2;
    config.parallel.zero = zero;
    config.memory.recompute = zero == 3 ? "block" : "none";
    expect_near(losses_of(config), want, concat("zero ", zero));
  }
  for (const schedule::Family& family : schedule::families()) {
    run::Config config = config_of({.size = 2});
    config.parallel.pipeline.size = 2;
    config.parallel.pipeline.schedule = family.name;
    expect_near(losses_of(config), want, family.name);
  }
  const test::TemporaryFolder folder;
  run::Config config = config_of();
  config.memory.disk = folder.path();
  config.memory.host = int64_t{1} << 30;
  config.memory.recompute = "block";
  expect_near(losses_of(config), want, "tiers");
}

// Between the same frozen ends, tensor parallelism communicates in forward as without adapters.
TEST(Adapter, CommunicatesOnlyItsGradients) {
  for (const bool sequence : {false, true}) {
    const run::Config config = config_of({.size = 2, .sequence = sequence});
    const nn::Adapter blocks_alone{
        .treatment = [](const std::string& name) { return nn::Treatment{.trains = name.starts_with("blocks.")}; }};
    std::map<bool, comm::Traffic::Count> counts;
    for (const bool has_adapters : {false, true})
      comm::run_ranks(2, [&](comm::World& world) {
        const auto engine = initialize(
            world, config, NamedModel{.shape = shape_of_all(), .adapter = has_adapters ? low_rank() : blocks_alone});
        test::train_step(*engine, 0, kRows);
        if (world.rank() == 0) counts[has_adapters] = world.traffic().total("tensor", "", comm::Phase::Forward);
      });
    EXPECT_GT(counts[false].calls, 0);
    EXPECT_EQ(counts[true].calls, counts[false].calls) << sequence;
    EXPECT_EQ(counts[true].bytes, counts[false].bytes) << sequence;
  }
}

TEST(Adapter, SavesOnlyItselfAndResumesUnderAnotherLayout) {
  const std::string folder = test::empty_folder("adapter");
  std::vector<double> whole;
  std::map<std::string, at::Tensor> saved;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config_of(), NamedModel{.shape = shape_of_all(), .adapter = low_rank()});
    test::train(*engine, 0, 3, kRows);
    test::save(*engine, folder);
    for (const checkpoint::NamedTensor& t : engine->state().tensors) {
      EXPECT_THAT(t.name, testing::AnyOf(HasSubstr(".adapter_a"), HasSubstr(".adapter_b")));
      test::put_part(saved[t.name], t);
    }
    whole = test::train(*engine, 3, 6, kRows);
  });
  for (const auto& [tensor, pipeline, data, zero] :
       std::vector<std::tuple<int64_t, int64_t, int64_t, int64_t>>{{1, 1, 1, 0}, {2, 2, 1, 0}, {1, 1, 2, 3}}) {
    run::Config config = config_of({.size = tensor});
    config.parallel.pipeline.size = pipeline;
    config.parallel.data = data;
    config.parallel.zero = zero;
    std::vector<double> resumed;
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      const auto engine = initialize(world, config, NamedModel{.shape = shape_of_all(), .adapter = low_rank()});
      test::load(*engine, folder);
      for (const checkpoint::NamedTensor& t : engine->state().tensors)
        EXPECT_TRUE(at::equal(t.value.clone(), test::local_part(saved.at(t.name), t, engine->mesh().coordinates())))
            << t.name;
      const std::vector<double> losses = test::train(*engine, 3, 6, kRows);
      if (world.rank() == 0) resumed = losses;
    });
    if (config.parallel.ranks() == 1)
      EXPECT_EQ(resumed, whole);
    else
      expect_near(resumed, whole, concat("tensor ", tensor, ", pipeline ", pipeline, ", zero ", zero));
  }
}

// The weight is on one of two stages, and the ranks of both must throw the error.
TEST(Adapter, RefusesPackedWeightsWithoutValues) {
  run::Config config = config_of();
  config.precision.mode = "fp32";
  config.parallel.pipeline.size = 2;
  nn::PackedWeights layers({});
  std::mutex mutex;
  const nn::Adapter packing{.product = [&](auto product, const nn::Parameter& weight, nn::Parameters&) {
    const std::lock_guard lock(mutex);
    return weight.name.starts_with("blocks.0.") ? layers.wrap(std::move(product), weight) : product;
  }};
  comm::run_ranks(2, [&](comm::World& world) {
    const std::string message = test::thrown_message(
        [&] { initialize(world, config, NamedModel{.shape = shape_of_all(), .adapter = packing}); });
    EXPECT_THAT(message, HasSubstr("[prepacked] packed weights without their values have no gradients: got blocks.0."));
    EXPECT_THAT(message, HasSubstr("in a model that trains; set WeightPacking::keeps_values"));
  });
}

// Training, packing and generation alternate, with packed weights inside the adapters.
TEST(Adapter, GeneratesWithRepackedWeightsAfterTraining) {
  const std::string folder = test::empty_folder("repacked");
  run::Config config = config_of();
  config.precision.mode = "fp32";
  config.memory.recompute = "block";  // forward passes of recomputed layers have no gradients
  struct Packed {
    nn::PackedWeights layers{nn::WeightPacking{.keeps_values = true}};
    nn::Adapter adapter{.product = [this](auto product, const nn::Parameter& weight, nn::Parameters&) {
      return weight.hidden_matrix ? layers.wrap(std::move(product), weight) : product;
    }};
  };
  const auto generated = [](Engine& engine, Packed& packed) {
    packed.layers.repack();
    const auto tokens = infer::generate(engine.distributed(), {.prompt = {1, 2, 3}, .options = {.max_tokens = 8}});
    packed.layers.release();
    return tokens;
  };
  comm::run_ranks(1, [&](comm::World& world) {
    Packed packed;
    const auto engine = initialize(world, config, NamedModel{.shape = shape_of_all(), .adapter = packed.adapter});
    const auto plain = initialize(world, config, shape_of_all());
    std::set<std::vector<int64_t>> seen;
    for (int64_t round = 0; round < 3; ++round) {
      const auto tokens = generated(*engine, packed);
      test::save(*engine, folder);
      Packed fresh;
      const auto loaded = initialize(world, config, NamedModel{.shape = shape_of_all(), .adapter = fresh.adapter});
      test::load(*loaded, folder);
      EXPECT_EQ(tokens, generated(*loaded, fresh)) << "round " << round;
      seen.insert(tokens);
      for (int64_t step = 0; step < 4; ++step)
        EXPECT_EQ(test::train_step(*engine, 4 * round + step, kRows),
                  test::train_step(*plain, 4 * round + step, kRows));
    }
    EXPECT_GT(seen.size(), 1u) << "what is generated follows from what was learnt";
  });
}

}  // namespace
}  // namespace colossal::train::adapter_test
