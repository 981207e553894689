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
#include "colossal/run/low_rank_adapter.h"
#include "colossal/schedule/make.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/zero_runs.h"

namespace colossal::train::adapter_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 2;

/// A model with grouped queries, whose keys and values several ranks may hold, and a fused gate.
models::ModelShape shape_of_all() {
  models::ModelShape shape = test::tiny_llama();
  shape.layers = 4;
  return shape;
}

/// An adapter of each matrix of the folder: q, k and v are parts of one of our matrices, and so are gate and up.
nn::Adapter low_rank(const models::ModelShape& shape = shape_of_all(), const run::LowRankKeys& keys = {}) {
  run::LowRankKeys own = keys;
  own.kind = keys.kind == "none" ? "lora" : keys.kind;
  own.rank = 2;
  own.alpha = 2;
  return run::low_rank_adapter(own, shape);
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

using Tensors = std::map<std::string, at::Tensor>;

/// A course of the one process with which layouts are compared: its losses, and its whole state after the first step,
/// which has the gradients in its moments.
struct Course {
  std::vector<double> losses;
  Tensors states;
};

/// A model with an adapter.
struct Adapted {
  models::ModelShape shape = shape_of_all();
  run::LowRankKeys keys{};
};

std::vector<double> losses_of(const run::Config& config, const Adapted& model,
                              const std::function<void(Engine&, int64_t step)>& see) {
  std::vector<double> losses;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine =
        initialize(world, config, NamedModel{.shape = model.shape, .adapter = low_rank(model.shape, model.keys)});
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = test::train_step(*engine, step, kRows);
      if (world.rank() == 0) losses.push_back(loss);
      const std::lock_guard lock(mutex);
      see(*engine, step);
    }
  });
  return losses;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << what << ", step " << i;
}

Course wanted(const Adapted& model = {}) {
  Course course;
  course.losses = losses_of(config_of(), model, [&](Engine& engine, int64_t step) {
    for (const checkpoint::NamedTensor& t : engine.state().tensors)
      if (step == 0) test::put_part(course.states[t.name], t);
    for (const nn::Parameter& p : engine.parameters())
      if (step + 1 == kSteps && nn::is_low_rank(p.name))
        EXPECT_GT(p.value.abs().max().item<double>(), 0) << p.name << " trains";
  });
  EXPECT_GT(std::abs(course.losses.front() - course.losses.back()), 1e-4);
  return course;
}

/// Trains the model under the layout of `config`. The losses, and the state of each rank after the first step, must
/// equal `want`.
void expect_course(const run::Config& config, const Course& want, const std::string& what, const Adapted& model = {}) {
  const std::vector<double> losses = losses_of(config, model, [&](Engine& engine, int64_t step) {
    if (step > 0) return;
    for (const checkpoint::NamedTensor& t : engine.state().tensors) {
      const at::Tensor whole = test::local_part(want.states.at(t.name), t, engine.mesh().coordinates());
      EXPECT_LE((t.value.clone() - whole).abs().max().item<double>(), 1e-10) << what << ": " << t.name;
    }
  });
  expect_near(losses, want.losses, what);
}

class AdapterModes : public testing::TestWithParam<parallel::TensorConfig> {};

TEST_P(AdapterModes, EqualOneProcess) {
  for (const char* kind : {"lora", "dora"}) {
    const Adapted model{.keys = {.kind = kind}};
    expect_course(config_of(GetParam()), wanted(model), test::name_of(GetParam()) + kind, model);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, AdapterModes, testing::ValuesIn(test::tensor_modes()),
                         [](const auto& info) { return test::name_of(info.param); });

void expect_courses_of_pipelines_and_stores(const Course& want, const Adapted& model,
                                            const std::vector<schedule::Family>& families) {
  for (const int64_t zero : {1, 2, 3}) {
    run::Config config = config_of();
    config.parallel.data = 2;
    config.parallel.zero = zero;
    config.memory.recompute = zero == 3 ? "block" : "none";
    expect_course(config, want, concat(model.keys.kind, ", zero ", zero), model);
  }
  for (const schedule::Family& family : families) {
    run::Config config = config_of({.size = 2});
    config.parallel.pipeline.size = 2;
    config.parallel.pipeline.schedule = family.name;
    expect_course(config, want, concat(model.keys.kind, ", ", family.name), model);
  }
  const test::TemporaryFolder folder;
  run::Config config = config_of();
  config.memory.disk = folder.path();
  config.memory.host = int64_t{1} << 30;
  config.memory.recompute = "block";
  expect_course(config, want, model.keys.kind + ", tiers", model);
}

TEST(Adapter, EqualsOneProcessUnderPipelinesZeroAndTiers) {
  expect_courses_of_pipelines_and_stores(wanted(), {}, schedule::families());
}

// Masks do not depend on the layout, and backward and recomputation draw the same ones.
TEST(Adapter, DropsEquallyUnderEveryLayout) {
  const Adapted model{.keys = {.kind = "dora", .dropout = 0.2}};
  const Course want = wanted(model), kept = wanted({.keys = {.kind = "dora"}});
  expect_courses_of_pipelines_and_stores(want, model, {schedule::families().back()});
  EXPECT_GT(std::abs(want.losses.back() - kept.losses.back()), 1e-6) << "dropout counts";
  expect_course(config_of({.size = 2}), want, "tensor", model);
  for (const parallel::SequenceConfig& sequence : test::sequence_modes()) {
    run::Config config = config_of();
    config.parallel.sequence = sequence;
    expect_course(config, want, concat("sequence ", sequence.mode), model);
  }
}

TEST(Adapter, RefusesDropoutOfGatheredBlocks) {
  for (const parallel::TensorConfig& mode : test::tensor_modes()) {
    if (mode.mode == "1d" && !mode.sequence) continue;
    const run::Config config = config_of(mode);
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      const std::string message = test::thrown_message([&] {
        initialize(world, config,
                   NamedModel{.shape = shape_of_all(), .adapter = low_rank(shape_of_all(), {.dropout = 0.1})});
      });
      EXPECT_THAT(message, HasSubstr("adapters with dropout must be around products of local blocks")) << world.rank();
    });
  }
}

// Latents whose rows are copied to ranks, experts without adapters, biases, one adapter for all of q, k and v.
TEST(Adapter, EqualsOneProcessInOtherFamilies) {
  for (models::ModelShape shape : {test::tiny_deepseek(), test::tiny_gpt2()}) {
    shape.vocabulary = kRows.vocabulary;
    const Adapted model{.shape = shape, .keys = {.kind = "dora"}};
    const Course want = wanted(model);
    for (const parallel::TensorConfig& mode :
         {parallel::TensorConfig{.size = 2}, parallel::TensorConfig{.size = 4, .mode = "2d"},
          parallel::TensorConfig{.size = 8, .mode = "3d"}})
      expect_course(config_of(mode), want, shape.architecture->name + test::name_of(mode), model);
  }
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
  Tensors saved;
  const nn::Adapter adapter = low_rank(shape_of_all(), {.kind = "dora"});
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config_of(), NamedModel{.shape = shape_of_all(), .adapter = adapter});
    test::train(*engine, 0, 3, kRows);
    test::save(*engine, folder);
    for (const checkpoint::NamedTensor& t : engine->state().tensors) {
      EXPECT_THAT(t.name, testing::ContainsRegex("[.]adapter_[abm]"));
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
      const auto engine = initialize(world, config, NamedModel{.shape = shape_of_all(), .adapter = adapter});
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
