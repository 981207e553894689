// Multi-token layers under products of layouts against one process, in fp64: losses, all gradients, gradient norms, and
// weights after the steps. The loss of the layers is not among the losses, but all gradients contain its gradients.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/shape_parts.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::multi_token_parity_test {
namespace {

models::ModelShape tiny_multi_token(int64_t layers) {
  models::ModelShape shape = tiny_deepseek();
  auto own = shape.own.as<models::DeepseekSizes>();
  own.multi_token_layers = layers;
  own.multi_token_loss = 0.8;
  shape.own = own;
  shape.set(models::MultiTokenSizes{layers});
  return shape;
}

struct Layout {
  const char* name;
  ParityCase c;
};

void PrintTo(const Layout& l, std::ostream* out) { *out << l.name; }

class MultiTokenParity : public testing::TestWithParam<Layout> {};

TEST_P(MultiTokenParity, EqualsOneProcess) {
  ParityCase c = GetParam().c;
  c.shape = tiny_multi_token(2);
  c.batch = 8;
  c.steps = 3;
  c.accumulate = c.pipeline.size > 1 ? 1 : 2;
  EXPECT_NO_THROW(check_parity(c));
  c.collectives_off = true;
  c.steps = 1;
  EXPECT_THROW(check_parity(c), std::exception);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MultiTokenParity,
    testing::Values(
        Layout{"data2", {.data = 2}}, Layout{"data2_expert2_zero3", {.data = 2, .expert = 2, .zero = 3}},
        Layout{"expert2_zero2_block", {.expert = 2, .zero = 2, .recompute = "block"}},
        Layout{"tensor2", {.tensor = {.size = 2}}},
        Layout{"data2_tensor2_sequence_form", {.data = 2, .tensor = {.size = 2, .sequence = true}}},
        Layout{"tensor4_2d", {.tensor = {.size = 4, .mode = "2d"}}},
        Layout{"tensor8_2_5d", {.tensor = {.size = 8, .mode = "2.5d", .depth = 2}}},
        Layout{"tensor8_3d", {.tensor = {.size = 8, .mode = "3d"}}},
        Layout{"data2_ring2", {.data = 2, .sequences = {.size = 2, .mode = "ring"}}},
        Layout{"ulysses2_zero3", {.sequences = {.size = 2, .mode = "ulysses"}, .zero = 3}},
        Layout{"pipeline2", {.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 4}}},
        Layout{"pipeline2_data2_zero_bubble",
               {.data = 2, .pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 4}, .zero = 1}},
        Layout{"pipeline2_tensor2_block",
               {.tensor = {.size = 2},
                .pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2},
                .recompute = "block"}}),
    testing::PrintToStringParamName());

constexpr Text kText{.vocabulary = 37};

/// Returns the values of `multi_token_loss` in the first steps of a course, as rank 0 reports them. With `repeats`
/// all steps have the batch of the first.
std::vector<double> reported(const run::Config& config, int64_t steps, bool repeats = false) {
  std::vector<double> values;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = train::initialize(world, config, tiny_multi_token(1));
    for (int64_t i = 0; i < steps; ++i) {
      engine->zero_grad();
      engine->train_step(own_batch(*engine, repeats ? 0 : i, kText));
      for (const Metric& row : engine->step().rows)
        if (row.name == "multi_token_loss" && world.rank() == 0) values.push_back(number_of(row));
    }
  });
  return values;
}

TEST(MultiTokenRuns, ReportTheLossOfOneProcess) {
  run::Config config = course_config();
  config.training.accumulate = 2;
  const std::vector<double> want = reported(config, 3);
  ASSERT_EQ(want.size(), 3u);
  const auto check = [&](const run::Config& other, const char* name) {
    const std::vector<double> got = reported(other, 3);
    ASSERT_EQ(got.size(), want.size()) << name;
    const at::Tensor whole = at::tensor(want, at::kDouble);
    const models::ModelShape shape = tiny_multi_token(1);
    const int64_t terms = terms_of_layers(shape.layers + shape.part<models::MultiTokenSizes>().layers, kText.rows * 6);
    EXPECT_NO_THROW(expect_close(at::tensor(got, at::kDouble), whole, terms, name));
  };
  run::Config many = config;
  many.parallel.data = 2;
  many.parallel.sequence = {.size = 2, .mode = "ring"};
  check(many, "data 2, ring 2");
  many.parallel.sequence = {};
  many.parallel.tensor = {.size = 2, .sequence = true};
  check(many, "data 2, tensor 2 in the form of sequences");
  run::Config pipeline = config;
  pipeline.training.accumulate = 1;
  pipeline.parallel.pipeline = {.size = 2, .micro_batches = 2};
  check(pipeline, "pipeline 2");
}

TEST(MultiTokenRuns, LearnTheTokensAfterTheNext) {
  run::Config config = course_config();
  config.optimizer.learning_rate = 0.01;
  config.optimizer.warmup_steps = 2;
  const std::vector<double> losses = reported(config, 40, /*repeats=*/true);
  EXPECT_LT(losses.back(), 0.9 * losses.front());
}

// A rank also reads the tokens after its own runs, whose labels its layers predict.
TEST(MultiTokenRuns, ReadTheTokensAfterARun) {
  run::Config config = course_config();
  config.data = {.sequence = 14, .documents = "joined"};
  config.parallel.sequence = {.size = 4, .mode = "ring"};
  comm::run_ranks(4, [&](comm::World& world) {
    const auto without = train::initialize(world, config, tiny_multi_token(0))->tokens_read();
    const auto with = train::initialize(world, config, tiny_multi_token(2))->tokens_read();
    ASSERT_FALSE(without.empty());
    ASSERT_FALSE(with.empty());
    std::vector<int> want(14), got(14);
    for (const tensor::TokenRun& run : without)
      for (int64_t i = run.first; i < std::min<int64_t>(14, run.first + run.size + 2); ++i) want[i] = 1;
    for (const tensor::TokenRun& run : with)
      for (int64_t i = run.first; i < run.first + run.size; ++i) ++got[i];
    EXPECT_EQ(got, want) << "rank " << world.rank();
  });
}

}  // namespace
}  // namespace colossal::test::multi_token_parity_test
