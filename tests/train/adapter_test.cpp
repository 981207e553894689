// Training with low-rank adapters under every layout equals one process. Only gradients of adapters are communicated,
// and checkpoints resume under another layout.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/memory/account.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/frozen_form.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/schedule/make.h"
#include "colossal/train/memory_needs.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/adapter_courses.h"

namespace colossal::train::adapter_test {
namespace {

using testing::HasSubstr;

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

/// A model with an adapter.
struct Adapted {
  models::ModelShape shape = shape_of_all();
  run::LowRankKeys keys{};
  NamedModel named() const { return {.shape = shape, .adapter = low_rank(shape, keys)}; }
};

AdapterCourse wanted(const Adapted& model = {}) {
  AdapterCourse course = adapter_course(config_of(), model.named(), kRows);
  EXPECT_GT(std::abs(course.losses.front() - course.losses.back()), 1e-4);
  return course;
}

void expect_course(const run::Config& config, const AdapterCourse& want, const std::string& what,
                   const Adapted& model = {}) {
  expect_adapter_course(config, model.named(), kRows, want, what);
}

class AdapterModes : public testing::TestWithParam<parallel::TensorConfig> {};

TEST_P(AdapterModes, EqualOneProcess) {
  for (const char* kind : {"lora", "dora"}) {
    const Adapted model{.keys = {.kind = kind}};
    expect_course(config_of(GetParam()), wanted(model), test::name_of(GetParam()) + kind, model);
  }
}

// The frozen matrices are codes, of which each rank has its part. They are those of one process in every layout.
TEST_P(AdapterModes, EqualOneProcessWithCodes) {
  for (const auto& [kind, base] : {std::pair("dora", "nf4"), std::pair("lora", "int8")}) {
    const Adapted model{.keys = {.kind = kind, .base = base, .double_quantized = false}};
    expect_course(config_of(GetParam()), wanted(model), test::name_of(GetParam()) + kind + base, model);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, AdapterModes, testing::ValuesIn(test::tensor_modes()),
                         [](const auto& info) { return test::name_of(info.param); });

void expect_courses_of_pipelines_and_stores(const AdapterCourse& want, const Adapted& model,
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
  const AdapterCourse want = wanted(model), kept = wanted({.keys = {.kind = "dora"}});
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
    const AdapterCourse want = wanted(model);
    for (const parallel::TensorConfig& mode :
         {parallel::TensorConfig{.size = 2}, parallel::TensorConfig{.size = 4, .mode = "2d"},
          parallel::TensorConfig{.size = 8, .mode = "3d"}})
      expect_course(config_of(mode), want, shape.architecture->name + test::name_of(mode), model);
  }
}

TEST(Adapter, EqualsOneProcessWithCodesUnderPipelinesZeroAndTiers) {
  const Adapted nf4{.keys = {.kind = "lora", .dropout = 0.1, .base = "nf4"}},
      int8{.keys = {.kind = "dora", .base = "int8"}};
  const AdapterCourse want = wanted(nf4);
  expect_courses_of_pipelines_and_stores(want, nf4, {schedule::families().back()});
  expect_courses_of_pipelines_and_stores(wanted(int8), int8, {schedule::families().front()});
  for (const parallel::SequenceConfig& sequence : test::sequence_modes()) {
    run::Config config = config_of();
    config.parallel.sequence = sequence;
    expect_course(config, want, concat("sequence ", sequence.mode), nf4);
  }
}

/// The values that a model computes with, in fp64.
Tensors values_of(Engine& engine) {
  Tensors values;
  for (const nn::Parameter& p : engine.parameters()) {
    const auto form = engine.parameters().form_of(p);
    if (!form || p.is_stack) {
      std::vector<at::Tensor> matrices;
      for (int64_t e = 0; form && e < p.value.size(0); ++e) matrices.push_back(form->decode(p.value[e], at::kDouble));
      values[p.name] = form ? at::stack(matrices) : p.value.detach().clone();
    } else {
      values[p.name] = form->decode(p.value, at::kDouble);
    }
  }
  return values;
}

void fill(Engine& engine, const Tensors& values) {
  for (const checkpoint::NamedTensor& t : engine.weights()) {
    if (!values.contains(t.name)) continue;  // a buffer
    const at::Tensor& whole = values.at(t.name);
    t.value.write().value.copy_(t.part ? whole.flatten().narrow(0, t.part->first, t.part->size) : whole);
  }
  engine.weights_loaded();
}

// A model with codes trains as one whose frozen matrices have the values of these codes.
TEST(Adapter, TrainsOnTheValuesOfCodes) {
  for (models::ModelShape shape : {shape_of_all(), test::tiny_gpt2(), test::tiny_deepseek()}) {
    shape.vocabulary = kRows.vocabulary;
    const bool has_experts = shape.part<models::MixtureSizes>().experts > 0;
    for (const char* base : {"bf16", "int8", "nf4"})
      comm::run_ranks(1, [&](comm::World& world) {
        const auto made = [&](const char* own) {
          run::LowRankKeys keys{.kind = has_experts ? "lora" : "dora", .base = own};
          if (has_experts) keys.targets = {"all-linear", "experts"};
          return initialize(world, config_of(), NamedModel{.shape = shape, .adapter = low_rank(shape, keys)});
        };
        const auto coded = made(base), decoded = made("model");
        const Tensors drawn = values_of(*decoded), values = values_of(*coded);
        int64_t other = 0;
        for (const auto& [name, value] : values) {
          const bool is_matrix = name.starts_with("blocks.") && value.dim() >= 2 && !nn::is_low_rank(name) &&
                                 coded->parameters().form_of(coded->parameters().at(name));
          if (!is_matrix)
            EXPECT_TRUE(at::equal(value, drawn.at(name))) << name;
          else
            other += at::equal(value, drawn.at(name)) ? 0 : 1;
        }
        int64_t matrices = 0;
        for (const nn::Parameter& p : coded->parameters())
          matrices += p.hidden_matrix && !p.looked_up && !p.is_added ? 1 : 0;
        EXPECT_EQ(other, matrices) << "all matrices of the blocks";
        EXPECT_TRUE(has_experts || matrices == 4 * shape.layers);
        fill(*decoded, values);
        const double first = test::train_step(*decoded, 0, kRows);
        EXPECT_NEAR(test::train_step(*coded, 0, kRows), first, 1e-10) << base;
        const double second = test::train_step(*decoded, 1, kRows);
        EXPECT_NEAR(test::train_step(*coded, 1, kRows), second, 1e-10) << base;
        const Tensors after = values_of(*coded);
        for (const auto& [name, value] : values)
          EXPECT_EQ(at::equal(value, after.at(name)), !nn::is_low_rank(name)) << name << " after two steps";
        // Values that are filled are encoded on every rank, as drawn ones are.
        fill(*coded, drawn);
        for (const auto& [name, value] : values_of(*coded))
          if (!nn::is_low_rank(name)) EXPECT_TRUE(at::equal(value, values.at(name))) << name;
      });
  }
}

// The model without its adapters multiplies with the codes, too.
TEST(Adapter, SwitchesOffBesideCodes) {
  const auto end = [](const models::Model&, const models::States& states, const nn::ForwardContext&) {
    return states[0].clone();
  };
  for (const parallel::TensorConfig& mode :
       {parallel::TensorConfig{}, parallel::TensorConfig{.size = 4, .mode = "2d"}}) {
    const run::Config config = config_of(mode);
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      const NamedModel main{.shape = shape_of_all(), .adapter = low_rank(shape_of_all(), {.base = "nf4"})};
      const auto engine =
          initialize(world, config, RunModels({main, {.name = "base", .is_main_without_adapters = true}}));
      const tensor::Batch batch = test::own_batch(*engine, 0, kRows);
      const at::Tensor start = engine->forward(batch, end).at(0), base = engine->forward(batch, end, "base").at(0);
      EXPECT_TRUE(at::equal(start, base)) << "new adapters change nothing";
      test::train_step(*engine, 0, kRows);
      EXPECT_TRUE(at::equal(engine->forward(batch, end, "base").at(0), base));
      EXPECT_FALSE(at::equal(engine->forward(batch, end).at(0), base));
    });
  }
}

TEST(Adapter, ReportsBadValuesOfCodes) {
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(
        world, config_of(), NamedModel{.shape = shape_of_all(), .adapter = low_rank(shape_of_all(), {.base = "nf4"})});
    for (const checkpoint::NamedTensor& t : engine->weights()) {
      if (t.name != "blocks.1.mlp.down.weight") continue;
      EXPECT_THAT(test::thrown_message([&] { t.value.read(); }), HasSubstr("because the run stores codes of them"));
      t.value.write().value.fill_(std::nan(""));
    }
    EXPECT_THAT(test::thrown_message([&] { engine->weights_loaded(); }), HasSubstr("[quantization]"));
  });
}

TEST(Adapter, NeedsTheBytesOfCodes) {
  std::map<std::string, int64_t> least;
  for (const char* base : {"model", "bf16", "int8", "nf4"})
    for (const int64_t zero : {0, 2, 3}) {
      run::Config config = config_of();
      config.parallel.data = 2;
      config.parallel.zero = zero;
      run::LowRankKeys own{.base = base};
      own.double_quantized = false;  // its tables are larger than these matrices
      const NamedModel model{.shape = shape_of_all(), .adapter = low_rank(shape_of_all(), own)};
      int64_t needed = 0;
      for (const MemoryNeed& need : memory_needs({config, model}, 0))
        if (need.what == "parameters" || need.what == kFrozenParameters) needed += need.bytes;
      comm::run_ranks(2, [&](comm::World& world) {
        memory::Account account;
        const auto engine = initialize(world, config, model);
        if (world.rank() == 0) EXPECT_EQ(account.usage().of(memory::Kind::Parameters), needed) << base << zero;
      });
      least[concat(base, " ", zero)] = needed;
    }
  EXPECT_LT(least["bf16 0"], least["model 0"]);
  EXPECT_LT(least["int8 0"], least["bf16 0"]);
  EXPECT_LT(least["nf4 0"], least["int8 0"]);
  EXPECT_LT(least["nf4 3"], least["nf4 0"]);
}

// Latents keep their values. NF4 blocks of GPT-2 follow the transposes of its folder.
TEST(Adapter, EqualsOneProcessWithCodesInOtherFamilies) {
  for (models::ModelShape shape : {test::tiny_deepseek(), test::tiny_gpt2()}) {
    shape.vocabulary = kRows.vocabulary;
    const Adapted model{.shape = shape, .keys = {.base = "nf4"}};
    const AdapterCourse want = wanted(model);
    for (const parallel::TensorConfig& mode :
         {parallel::TensorConfig{.size = 2}, parallel::TensorConfig{.size = 4, .mode = "2d"}})
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
      EXPECT_THAT(resumed, testing::Pointwise(testing::DoubleNear(1e-10), whole)) << tensor << pipeline << zero;
  }
}

}  // namespace
}  // namespace colossal::train::adapter_test
