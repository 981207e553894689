// Learning in every number format, and with messages of one byte per element, compared with fp32. Tests compare the
// learned part of losses, because a short run changes losses by only a few percent; and gradients.
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/memory/chunk_store.h"
#include "train/zero_runs.h"

namespace colossal::train::formats_test {
namespace {

/// Plain gradient descent on one batch, because it learns in proportion to the gradients; Adam would hide a factor in
/// them.
run::Config learner(const Layout& layout) {
  run::Config config = config_of(layout);
  config.optimizer.name = "sgd";
  config.optimizer.learning_rate = 0.1;
  config.training.clip = 0;
  return config;
}

/// Returns for each of `steps` steps by how much the loss is below the loss of the same run without learning. That run
/// gives the loss of the format with untrained weights.
std::vector<double> learned(run::Config config, int64_t steps, const models::ModelShape& shape = test::tiny_gpt2()) {
  const std::vector<double> losses = run(config, steps, shape, 1).losses;
  config.optimizer.learning_rate = 0;
  std::vector<double> below = run(config, steps, shape, 1).losses;
  for (size_t i = 0; i < losses.size(); ++i) below[i] -= losses[i];
  return below;
}

void expect_learned_like(const std::vector<double>& got, const std::vector<double>& want, double error,
                         const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_GT(want.back(), 0.5) << "too little to compare";
  for (size_t i = 1; i < got.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, error) << what << ", step " << i;
}

/// Returns half a unit in the last place of 1.
double roundoff_of(const std::string& format) { return format == "fp16" ? 0x1p-11 : 0x1p-8; }

/// Returns the relative error of gradients, and of the learning from them. Between a weight and the loss and back there
/// are about 48 roundings: 10 per layer, 4 outside of the two layers. The linear layers have 16 products in both
/// directions in fp8. Their operands have an rms error of 0.026 (e4m3) and 0.053 (e5m2). The errors are independent, so
/// their squares add up.
double error_of(const std::string& format) {
  return format == "fp8" ? std::sqrt(16) * std::hypot(0.026, 0.053) : std::sqrt(48) * roundoff_of(format);
}

struct Gradient {
  std::string name;
  at::Tensor value;
};

/// Returns the gradients of the first step on one rank, without the loss scale.
std::vector<Gradient> gradients(const run::Config& config, const tensor::Batch& batch) {
  std::vector<Gradient> found;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2());
    engine->zero_grad();
    engine->train_step(batch);
    const double scale = config.precision.mode == "fp16" ? config.precision.loss_scale : 1;
    for (const memory::Shard& shard : engine->store().shards())
      for (const memory::Piece& piece : shard.pieces()) {
        const at::Tensor gradient = shard.lease()->gradients.narrow(0, piece.offset, piece.part.size);
        found.push_back({piece.parameter->name, gradient.to(at::kDouble) / scale});
      }
  });
  return found;
}

void expect_close(const std::vector<Gradient>& got, const std::vector<Gradient>& want, double error) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_LE((got[i].value - want[i].value).norm().item<double>(), error * want[i].value.norm().item<double>())
        << want[i].name;
}

class Formats : public testing::TestWithParam<std::string> {};

// With two replicas the sum of two numbers has one rounding in any order. Stages 0 and 1 add gradients to whole chunks
// in place. Stages 2 and 3 use them as they arrive, which has one rounding less.
TEST_P(Formats, EqualBitwiseUnderAllZeroStages) {
  const auto learn = [&](int64_t zero) {
    return learned(learner({.zero = zero, .data = 2, .precision = GetParam()}), 12, test::tiny_llama());
  };
  const auto whole = learn(0), shared_out = learn(2);
  EXPECT_EQ(learn(1), whole);
  EXPECT_EQ(learn(3), shared_out);
  expect_learned_like(shared_out, whole, error_of(GetParam()), "zero 2");
}

TEST_P(Formats, LearnLikeFp32WithinTheirPrecision) {
  const auto want = learned(learner({}), 20);
  for (const Layout& layout : {Layout{.precision = GetParam()}, Layout{.zero = 3, .data = 3, .precision = GetParam()},
                               Layout{.zero = 1, .data = 2, .tensor = 2, .precision = GetParam()},
                               Layout{.zero = 2, .data = 2, .pipeline = 2, .precision = GetParam()}}) {
    const auto got = learned(learner(layout), 20);
    expect_learned_like(got, want, error_of(GetParam()), concat("zero ", layout.zero));
    EXPECT_NE(got, want) << "the format was not used";
  }
  for (const char* mode : {"gather", "ulysses", "ring"}) {
    run::Config config = learner({.precision = GetParam()});
    config.parallel.sequence = {2, mode};
    expect_learned_like(learned(config, 20), want, error_of(GetParam()), mode);
  }
}

TEST_P(Formats, HaveTheGradientsOfFp32WithinTheirPrecision) {
  const tensor::Batch batch = test::batch_of(0, 0, 1, kText);
  expect_close(gradients(config_of({.precision = GetParam()}), batch), gradients(config_of({}), batch),
               error_of(GetParam()));
}

// Rows pass through the model one by one in both cases, so only the summation of gradients differs: each of n gradients
// is rounded once, and so is their sum.
TEST_P(Formats, AddUpMicroBatchesInFp32) {
  run::Config config = config_of({.precision = GetParam()});
  const auto compare = [&](const tensor::Batch& batch, double roundings) {
    config.training.batch_size = batch.rows();
    config.training.accumulate = 1;
    config.parallel.zero = 0;
    const auto want = gradients(config, batch);
    config.training.accumulate = batch.rows();
    for (const int64_t zero : {0, 2}) {
      config.parallel.zero = zero;
      expect_close(gradients(config, batch), want, roundings * roundoff_of(GetParam()));
    }
  };
  // The sum of 12 different gradients is about sqrt(12) times as large as one, and each has its own rounding error.
  compare(test::batch_of(0, 0, 1, kText), 1 + std::sqrt(12));
  // The batch has 192 equal rows; a narrow sum would round each partial sum.
  const auto again = [](const tensor::Field& f) { return f.tensor.narrow(0, 0, 1).repeat({192, 1}); };
  compare(test::batch_of(0, 0, 1, kText).map(again), 2);
}

INSTANTIATE_TEST_SUITE_P(Half, Formats, testing::Values("bf16", "fp16", "fp8"),
                         [](const auto& info) { return info.param; });

// Chimera has every stage twice, each replica with half of the micro-batches. A checkpoint saves one history, which
// must be correct for both.
TEST(Fp8, HasEqualHistoriesOnBothRanksOfAStage) {
  run::Config config = config_of({.pipeline = 2, .precision = "fp8"});
  config.parallel.pipeline.schedule = "chimera";
  config.parallel.pipeline.micro_batches = 2;
  config.precision.fp8.scaling = "delayed";
  std::vector<std::vector<at::Tensor>> two(2);
  comm::run_ranks(2, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2());
    test::train_step(*engine, 0, kText);
    for (const checkpoint::NamedTensor& t : engine->state().tensors)
      if (t.name.ends_with(".fp8_history")) two[static_cast<size_t>(world.rank())].push_back(t.value.clone());
  });
  ASSERT_EQ(two[0].size(), two[1].size());
  ASSERT_GT(two[0].size(), 0u);
  for (size_t i = 0; i < two[0].size(); ++i) EXPECT_TRUE(at::equal(two[0][i], two[1][i])) << i;
}

TEST(Compression, LearnsWithOneBytePerElement) {
  const auto bytes_of_step = [](const run::Config& config) {
    double bytes = 0;
    comm::run_ranks(2, [&](comm::World& world) {
      const auto engine = initialize(world, config, test::tiny_gpt2());
      world.traffic().reset();
      test::train_step(*engine, 0, kText);
      if (world.rank() == 0) bytes = world.traffic().total("data").bytes;
    });
    return bytes;
  };
  for (const int64_t zero : {0, 2, 3}) {
    run::Config config = learner({.zero = zero, .data = 2});
    config.parallel.chunk_mib = 1;
    const auto want = learned(config, 12);
    const double whole_bytes = bytes_of_step(config);
    // rms of two hops, docs/explanation/precision.md
    for (const auto& [compress, error] : {std::pair{"fp8", 0.037}, std::pair{"int8", 0.009}}) {
      config.parallel.compress = compress;
      const auto got = learned(config, 12);
      EXPECT_NE(got, want);
      // Both the values that products read and the resulting gradients are compressed.
      expect_learned_like(got, want, 2 * std::sqrt(16) * error, concat(compress, " zero ", zero));
      const double share = zero == 2 ? 0.7 : 0.3;  // zero 2 without master weights gathers uncompressed values
      EXPECT_LT(bytes_of_step(config), share * whole_bytes) << compress << " zero " << zero;
    }
  }
}

// Ranks with different tokens of the same rows are replicas like others, so their gradients are compressed too.
TEST(Compression, LearnsWithSplitTokens) {
  const auto want = learned(learner({}), 12);
  for (const int64_t zero : {0, 3}) {
    run::Config config = learner({.zero = zero});
    config.parallel.sequence = {2, "ring"};
    const auto whole = learned(config, 12);
    config.parallel.compress = "fp8";
    const auto got = learned(config, 12);
    EXPECT_NE(got, whole) << "not compressed";
    expect_learned_like(got, want, 2 * std::sqrt(16) * 0.037, concat("zero ", zero));
  }
}

}  // namespace
}  // namespace colossal::train::formats_test
