// Training on an accelerator compared with training on the CPU: every optimizer, every number format, evaluation and
// checkpoints.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/models/registry.h"
#include "colossal/models/task.h"
#include "colossal/optim/config.h"
#include "colossal/train/engine.h"
#include "support/accelerator.h"
#include "support/called_operators.h"
#include "support/course.h"
#include "support/parity.h"

namespace colossal::train::training_accelerator_test {
namespace {

constexpr test::Text kText{.vocabulary = 37};
constexpr int64_t kSteps = 4;

class TrainingOnAccelerator : public test::AcceleratorTest {};

/// Runs work(engine) on the ranks of `config`, on the CPU or on accelerators. Returns the result of rank 0.
template <class Work>
auto on(bool there, const run::Config& config, const models::ModelShape& shape, const Work& work) {
  decltype(work(std::declval<Engine&>())) result{};
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const at::Device device = there ? test::accelerator(world.local_rank()) : at::Device(at::kCPU);
    const auto engine = initialize(world, config, shape, device);
    EXPECT_EQ(engine->device(), device);
    EXPECT_EQ((*engine->parameters().begin()).value.device(), device);
    auto mine = work(*engine);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

/// Compares losses in fp64. The limit is half of the digits: an error costs more, and rounding costs less, even
/// amplified by a rule.
void expect_same_course(const std::vector<double>& got, const std::vector<double>& want, const std::string& what) {
  const double limit = std::sqrt(std::numeric_limits<double>::epsilon());
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LT(want.back(), want.front()) << "too little was learned to compare";
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, limit) << what << ", step " << i;
}

run::Config config_of(const std::string& optimizer) {
  run::Config c = test::course_config();
  c.training.clip = 0.5;
  c.optimizer.name = optimizer;
  c.optimizer.warmup_steps = 0;
  // A large epsilon, because the rules would otherwise divide rounding errors by rounding errors.
  if (optimizer.starts_with("adam") || optimizer == "lamb") c.optimizer.epsilon = 1e-3;
  c.optimizer.learning_rate = optimizer == "lars" ? 1 : 0.01;
  if (optimizer == "galore") c.optimizer.rank = 5;
  return c;
}

/// Returns the losses of steps that all read the same batch.
std::vector<double> learn(Engine& engine, int64_t steps, const test::Text& text = {}) {
  std::vector<double> losses;
  for (int64_t step = 0; step < steps; ++step) losses.push_back(test::train_step(engine, 0, text));
  return losses;
}

TEST_F(TrainingOnAccelerator, TrainsLikeTheCpuByEveryRule) {
  for (const std::string& rule : optim::rule_names())
    for (const int64_t ranks : {1, 2}) {
      if (!test::has_accelerators_for(ranks)) continue;
      if (rule == "adam8bit") continue;  // requires the library's kernels and throws without them
      run::Config config = config_of(rule);
      config.parallel.data = ranks;
      config.parallel.zero = ranks == 1 ? 0 : 1;
      const auto course = [](Engine& engine) { return learn(engine, kSteps, kText); };
      expect_same_course(on(true, config, test::tiny_llama(), course), on(false, config, test::tiny_llama(), course),
                         concat(rule, ", ", ranks, " ranks"));
    }
}

/// Returns a batch that a model can learn a little of: images or texts by a formula, and labels by their position.
tensor::Batch evaluated_batch(const models::ModelShape& shape) {
  const tensor::Batch batch = test::batch_of_ones(shape, 8, 6);
  const bool has_images = shape.task().reads == models::Reads::Images;
  const at::Tensor &inputs = batch.at(has_images ? "images" : "ids"), &labels = batch.at("labels");
  if (has_images)
    inputs.copy_(at::arange(inputs.numel()).mul(0.37).sin().view_as(inputs));
  else
    inputs.copy_(at::arange(inputs.numel()).mul(11).remainder(37).view_as(inputs));
  labels.copy_(at::arange(labels.numel()).remainder(has_images ? 2 : 3).view_as(labels));
  labels.view(-1)[1] = data::kIgnored;
  return batch;
}

TEST_F(TrainingOnAccelerator, EvaluatesLikeTheCpu) {
  for (const auto& shape : {test::tiny_vit(), test::tiny_bert(), test::tiny_bert("class")})
    for (const int64_t stages : {1, 2}) {
      run::Config config = config_of("adamw");
      if (!test::has_accelerators_for(stages)) continue;
      if (stages > 1) config.parallel.pipeline = {.size = stages, .micro_batches = 2};
      const auto found = [&](Engine& engine) {
        const tensor::Batch batch = evaluated_batch(shape);
        for (int step = 0; step < 2; ++step) {
          engine.zero_grad();
          engine.train_step(batch);
          engine.step();
        }
        return engine.evaluate(batch);
      };
      const Evaluation got = on(true, config, shape, found), want = on(false, config, shape, found);
      const std::string what = concat(shape.architecture->name, " in ", stages, " stages");
      EXPECT_EQ(got.weight, want.weight) << what;
      ASSERT_EQ(want.sums.size(), 2u) << what;
      EXPECT_GT(want.sums[1], 0) << what;
      EXPECT_LT(want.sums[1], want.weight) << what;
      EXPECT_EQ(got.sums.at(1), want.sums[1]) << what;
      EXPECT_NEAR(got.loss() / want.loss(), 1, std::sqrt(std::numeric_limits<double>::epsilon())) << what;
    }
}

TEST_F(TrainingOnAccelerator, TrainsLikeTheCpuByOurKernels) {
  if (!test::AcceleratorKernels::are_there()) GTEST_SKIP() << "nvcc did not compile our kernels";
  test::AcceleratorKernels kernels;
  for (const std::string rule : {"adam8bit", "adamw", "sgd", "lion", "lamb"}) {
    run::Config config = config_of(rule);
    config.parallel.data = test::has_accelerators_for(2) ? 2 : 1;
    config.parallel.zero = 1;
    models::ModelShape shape = test::tiny_llama();
    shape.dropout = 0.1;
    const auto course = [](Engine& engine) { return learn(engine, kSteps, kText); };
    expect_same_course(on(true, config, shape, course), on(false, config, shape, course), rule);
    EXPECT_GT(kernels.launches().value_or(1), 0) << rule;
  }
}

std::vector<double> gradient_of(Engine& engine, double scale) {
  engine.zero_grad();
  engine.train_step(test::batch_of(0, 0, 1, kText));
  std::vector<double> all;
  for (const memory::Shard& shard : engine.store().shards())
    for (const memory::Piece& piece : shard.pieces()) {
      const at::Tensor part = test::peek(shard.lease()->gradients.narrow(0, piece.offset, piece.part.size));
      for (int64_t i = 0; i < part.numel(); ++i) all.push_back(part[i].item<double>() / scale);
    }
  return all;
}

/// Returns the error of the whole gradient, relative to its length.
double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  double off = 0, length = 0;
  for (size_t i = 0; i < want.size(); ++i) off += (got[i] - want[i]) * (got[i] - want[i]), length += want[i] * want[i];
  return std::sqrt(off / length);
}

/// Returns the expected relative error of a gradient, as in formats_test. The forward and backward passes have about 48
/// roundings between a weight and the loss; fp8 has 16 products of values with rms errors of 0.026 and 0.053.
double error_of(const std::string& format) {
  if (format == "fp32") return std::sqrt(48.0) * 0x1p-24 * 16;  // sums of up to 16 * 16 terms round, too
  return format == "fp8" ? std::sqrt(16) * std::hypot(0.026, 0.053)
                         : std::sqrt(48.0) * (format == "fp16" ? 0x1p-11 : 0x1p-8);
}

TEST_F(TrainingOnAccelerator, EqualsGradientsOfTheCpuByOurKernels) {
  if (!test::AcceleratorKernels::are_there()) GTEST_SKIP() << "nvcc did not compile our kernels";
  test::AcceleratorKernels kernels;
  run::Config config = test::course_config();
  const auto want = on(false, config, test::tiny_llama(), [](Engine& e) { return gradient_of(e, 1); });
  for (const std::string format : {"fp32", "bf16", "fp16"}) {
    config.precision.mode = format;
    const double scale = format == "fp16" ? config.precision.loss_scale : 1;
    const auto got = on(true, config, test::tiny_llama(), [&](Engine& e) { return gradient_of(e, scale); });
    ASSERT_EQ(got.size(), want.size());
    EXPECT_LT(relative_error(got, want), error_of(format)) << format;
  }
}

TEST_F(TrainingOnAccelerator, EqualsGradientsOfTheCpuInEveryFormat) {
  for (const int64_t micro_batches : {1, 2}) {
    run::Config config = test::course_config();
    config.training.accumulate = micro_batches;
    const auto want = on(false, config, test::tiny_gpt2(), [](Engine& e) { return gradient_of(e, 1); });
    for (const std::string format : {"fp32", "bf16", "fp16", "fp8"}) {
      config.precision.mode = format;
      const double scale = format == "fp16" ? config.precision.loss_scale : 1;
      const auto got = on(true, config, test::tiny_gpt2(), [&](Engine& e) { return gradient_of(e, scale); });
      ASSERT_EQ(got.size(), want.size());
      EXPECT_LT(relative_error(got, want), error_of(format)) << format << ", " << micro_batches << " micro-batches";
      EXPECT_NE(got, want) << format << " was not used";
    }
  }
}

// The head size is 8, which flash attention supports.
TEST_F(TrainingOnAccelerator, EqualsGradientsOfTheCpuWithSplitTokens) {
  if (!test::has_accelerators_for(4)) GTEST_SKIP() << "four ranks that are threads need four devices";
  models::ModelShape shape = test::tiny_llama();
  shape.head_dim = 8;
  run::Config config = test::course_config();
  const auto want = on(false, config, shape, [](Engine& e) { return gradient_of(e, 1); });
  for (const parallel::SequenceConfig& sequence : test::sequence_modes()) {
    config.parallel.sequence = sequence;
    config.precision.mode = "bf16";
    const test::CalledOperators called;
    const auto got = on(true, config, shape, [&](Engine& e) { return gradient_of(e, 1); });
    EXPECT_LT(relative_error(got, want), error_of("bf16")) << sequence.mode;
    if (sequence.mode == "ring" || sequence.mode == "usp") EXPECT_GT(called("_flash_attention_forward"), 0);
  }
}

TEST_F(TrainingOnAccelerator, LearnsInEveryFormat) {
  for (const std::string format : {"bf16", "fp16", "fp8"})
    for (const bool by_chance : {false, true}) {  // true = stochastic rounding
      if (by_chance && format != "bf16") continue;
      run::Config config = config_of("adamw");
      config.precision.mode = format;
      config.optimizer.stochastic_rounding = by_chance;
      config.precision.masters = !by_chance;
      const auto losses = on(true, config, test::tiny_gpt2(), [](Engine& engine) { return learn(engine, 8); });
      EXPECT_LT(losses.back(), losses.front() - 0.1) << format << (by_chance ? ", rounded by chance" : "");
    }
}

TEST_F(TrainingOnAccelerator, DropsTheElementsOfTheCpu) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.dropout = 0.3;
  const auto course = [](Engine& engine) { return learn(engine, 6); };
  expect_same_course(on(true, config_of("adamw"), shape, course), on(false, config_of("adamw"), shape, course),
                     "dropout");
}

TEST_F(TrainingOnAccelerator, ClipsAndEvaluatesLikeTheCpu) {
  for (const std::string by : {"norm", "largest", "value"}) {
    run::Config config = config_of("sgd");
    config.training.clip_by = by;
    const auto course = [](Engine& engine) {
      std::vector<double> all = learn(engine, 3);
      const Evaluation found = engine.evaluate(test::batch_of(0, 0, 1));
      all.insert(all.begin(), found.weight);
      all.push_back(found.loss());
      return all;
    };
    expect_same_course(on(true, config, test::tiny_gpt2(), course), on(false, config, test::tiny_gpt2(), course), by);
  }
}

TEST_F(TrainingOnAccelerator, MovesCheckpointsBetweenDevices) {
  run::Config config = config_of("adamw");
  config.parallel.data = test::has_accelerators_for(2) ? 2 : 1;
  config.parallel.zero = 3;
  const std::string folder = test::empty_folder("checkpoint");
  const auto want = on(false, config, test::tiny_gpt2(), [](Engine& engine) { return learn(engine, 4); });
  for (const bool there : {true, false}) {
    on(there, config, test::tiny_gpt2(), [&](Engine& engine) {
      learn(engine, 2);
      test::save(engine, folder);
      return 0;
    });
    const auto got = on(!there, config, test::tiny_gpt2(), [&](Engine& engine) {
      test::load(engine, folder);
      std::vector<double> all{want[0], want[1]};
      for (const double loss : learn(engine, 2)) all.push_back(loss);
      return all;
    });
    expect_same_course(got, want, there ? "from the accelerator" : "to the accelerator");
  }
}

}  // namespace
}  // namespace colossal::train::training_accelerator_test
