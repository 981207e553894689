// The model of examples/own_streams, whose layers change two hidden states, gives the results of one rank under every
// layout.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/schedule/make.h"
#include "colossal/train/engine.h"
#include "streams.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::own_streams_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 8, kTokens = 16;

models::ModelShape streams(const std::vector<std::string>& keys = {}) {
  models::Registry models = models::built_in();
  models.add(streams_architecture());
  return models.resolve({.name = "streams-tiny", .own = models::own_keys(keys)});
}

tensor::Batch batch(int64_t tokens = kTokens) {
  auto generator = at::detail::createCPUGenerator(5);
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor text = at::randint(0, 257, {kRows, tokens + 1}, generator, ids);
  return data::text_batch(text.narrow(1, 0, tokens), text.narrow(1, 1, tokens),
                          at::arange(tokens, ids).repeat({kRows, 1}));
}

run::Config config_of(const distributed::ParallelConfig& parallel) {
  run::Config config = test::course_config();
  config.parallel = parallel;
  config.parallel.chunk_mib = 0.01;
  config.data.sequence = kTokens;
  config.training.batch_size = kRows;
  config.training.accumulate = parallel.pipeline.size > 1 ? 1 : 2;
  config.optimizer.warmup_steps = 0;
  return config;
}

/// Losses of two steps, then the loss of an evaluation.
std::vector<double> losses(const run::Config& config, const models::ModelShape& shape = streams()) {
  std::vector<double> found;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    const tensor::Batch own = engine->replica_rows(kRows).of(batch());
    std::vector<double> mine;
    for (int step = 0; step < 2; ++step) {
      engine->zero_grad();
      mine.push_back(engine->train_step(own));
      engine->step();
    }
    mine.push_back(engine->evaluate(own).loss());
    if (world.rank() == 0) found = mine;
  });
  return found;
}

void expect_near(const run::Config& config, const std::vector<double>& want, const std::string& what) {
  const std::vector<double> got = losses(config);
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-10) << "step " << i << ", " << what;
}

TEST(OwnStreams, EqualOneRankUnderEveryLayout) {
  const std::vector<double> want = losses(config_of({}));
  EXPECT_LT(want[1], want[0]);
  EXPECT_GT(std::abs(losses(config_of({}), streams({"slots=4"}))[1] - want[1]), 1e-9) << "the pairs count";
  for (const distributed::ParallelConfig& parallel : std::vector<distributed::ParallelConfig>{
           {.data = 2, .zero = 2},
           {.data = 2, .zero = 3},
           {.tensor = {.size = 2}},
           {.tensor = {.size = 4, .mode = "2d"}},
           {.tensor = {.size = 4, .mode = "2d"}, .pipeline = {.size = 2, .micro_batches = 2}},
           {.data = 2, .tensor = {.size = 2}, .pipeline = {.size = 2, .micro_batches = 2}, .zero = 1}})
    expect_near(
        config_of(parallel), want,
        concat(test::name_of(parallel.tensor), ", zero ", parallel.zero, ", pipeline ", parallel.pipeline.size));
}

TEST(OwnStreams, EqualOneRankUnderEverySchedule) {
  const std::vector<double> want = losses(config_of({}));
  for (const schedule::Family& family : schedule::families())
    expect_near(config_of({.pipeline = {.size = 2, .schedule = family.name, .micro_batches = 4}}), want, family.name);
}

TEST(OwnStreams, RecomputeTheirBlocksAndOffloadBothStates) {
  const std::vector<double> want = losses(config_of({}));
  const test::TemporaryFolder folder;
  for (const bool in_tiers : {false, true})
    for (const distributed::ParallelConfig& parallel : std::vector<distributed::ParallelConfig>{
             {}, {.pipeline = {.size = 2, .schedule = "zero-bubble-v", .micro_batches = 4}}}) {
      run::Config config = config_of(parallel);
      config.memory.recompute = "block";
      if (in_tiers) {
        config.memory.disk = folder / "tiers";
        config.memory.host = parallel.ranks() << 20;
      }
      expect_near(config, want, concat("pipeline ", parallel.pipeline.size, in_tiers ? ", tiers" : ""));
    }
}

/// Returns the unsharded logits of a forward pass through the model that decodes.
at::Tensor logits(const distributed::ParallelConfig& parallel) {
  at::Tensor found;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config_of(parallel), streams());
    const at::NoGradGuard no_grad;
    const at::Tensor own = engine->distributed().everywhere(
        nn::step_of(batch()),
        [&](int, const models::States& end, const nn::ForwardContext& step) {
          return engine->distributed().decoding_model().head->logits(end[0], step);
        },
        at::empty({kRows, kTokens, 257}, at::kDouble));
    const std::lock_guard lock(mutex);
    if (found.defined()) EXPECT_TRUE(at::equal(own, found)) << "the same on all ranks";
    found = own;
  });
  return found;
}

TEST(OwnStreams, ReturnResultsOfAPipelineOnEveryRank) {
  const at::Tensor want = logits({});
  for (const char* schedule : {"1f1b", "zero-bubble-v"})
    EXPECT_TRUE(
        at::allclose(logits({.pipeline = {.size = 2, .schedule = schedule, .micro_batches = 2}}), want, 0, 1e-12))
        << schedule;
}

TEST(OwnStreams, RefuseIndivisibleSizes) {
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config_of({}), streams());
    EXPECT_THAT(test::thrown_message([&] { engine->train_step(batch(12)); }),
                HasSubstr("the tokens of a row must be divisible by the 8 slots: got 12"));
  });
  comm::run_ranks(2, [&](comm::World& world) {
    EXPECT_THAT(test::thrown_message(
                    [&] { initialize(world, config_of({.tensor = {.size = 2, .sequence = true}}), streams()); }),
                HasSubstr("a model of streams must have all tokens of a row on one rank"));
  });
}

}  // namespace
}  // namespace colossal::train::own_streams_test
