// Fields of a user-defined model, which its last layer reads, give the results of one process under every layout.
#include "colossal/data/batch_fields.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/decoder.h"
#include "colossal/models/registry.h"
#include "colossal/nn/forward_context.h"
#include "colossal/ops/activation.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::batch_fields_test {
namespace {

using tensor::Dim;
using testing::HasSubstr;

constexpr int64_t kRows = 8, kTokens = 8;

/// The last block multiplies each token by its weight and adds the shift of its row.
models::Model make_reader(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model =
      models::make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);
  model.fields.insert(model.fields.end(), {"weights", "shift"});
  model.blocks.back() = [inner = model.blocks.back(), part = layers.field_part()](const at::Tensor& x,
                                                                                  const nn::ForwardContext& step) {
    if (x.is_meta()) return inner(x, step);  // the task's example, from which costs are estimated, lacks the fields
    const at::Tensor weights = part(step.batch->field("weights"), step), shift = part(step.batch->field("shift"), step);
    return inner(x, step) * weights.unsqueeze(-1) + shift.unsqueeze(1);
  };
  return model;
}

models::ModelShape reader() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.layers = 4;
  shape.architecture =
      std::make_shared<models::Architecture>(models::Architecture{.name = "reader", .make = make_reader});
  return shape;
}

tensor::Batch plain_batch() {
  auto generator = at::detail::createCPUGenerator(5);
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor tokens = at::randint(0, 43, {kRows, kTokens + 1}, generator, ids);
  return data::text_batch(tokens.narrow(1, 0, kTokens), tokens.narrow(1, 1, kTokens),
                          at::arange(kTokens, ids).repeat({kRows, 1}));
}

tensor::Batch batch() {
  auto generator = at::detail::createCPUGenerator(6);
  tensor::Batch batch = plain_batch();
  batch.add("weights", {at::rand({kRows, kTokens}, generator, at::kDouble), {Dim::Row, Dim::Token}});
  batch.add("shift", {at::randn({kRows, 24}, generator, at::kDouble), {Dim::Row, Dim::Feature}});
  return batch;
}

run::Config config_of(const distributed::ParallelConfig& parallel, const std::string& recompute = "none") {
  run::Config config = test::course_config();
  config.parallel = parallel;
  config.parallel.chunk_mib = 0.01;
  config.data.sequence = kTokens;
  config.training.batch_size = kRows;
  config.training.accumulate = parallel.pipeline.size > 1 ? 1 : 2;
  config.memory.recompute = recompute;
  config.optimizer.warmup_steps = 0;
  return config;
}

/// Losses of two steps, then the loss of an evaluation.
std::vector<double> losses(const run::Config& config, const tensor::Batch& whole) {
  std::vector<double> found;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, reader());
    const tensor::Batch own = engine->replica_rows(kRows).of(whole);
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

TEST(BatchFields, ReachLayersOfEveryStage) {
  const tensor::Batch whole = batch();
  const std::vector<double> want = losses(config_of({}), whole);
  const tensor::Batch other = whole.map(
      [](const tensor::Field& f) { return f.dims.back() == Dim::Feature ? at::zeros_like(f.tensor) : f.tensor; });
  EXPECT_GT(std::abs(losses(config_of({}), other)[0] - want[0]), 1e-6) << "the field counts";
  std::vector<run::Config> cases;
  for (const distributed::ParallelConfig& parallel : std::vector<distributed::ParallelConfig>{
           {.data = 2},
           {.tensor = {.size = 2}},
           {.tensor = {.size = 2, .sequence = true}},
           {.tensor = {.size = 4, .mode = "2d"}},
           {.sequence = {2, "ring"}},
           {.sequence = {2, "gather"}, .tensor = {.size = 2, .sequence = true}},
           {.pipeline = {.size = 2, .micro_batches = 2}},
           {.pipeline = {.size = 2, .schedule = "zero-bubble-v", .micro_batches = 4}},
           {.data = 2, .tensor = {.size = 2}, .pipeline = {.size = 2, .micro_batches = 2}, .zero = 1}})
    cases.push_back(config_of(parallel));
  cases.push_back(config_of({.pipeline = {.size = 2, .micro_batches = 2}}, "block"));
  for (const run::Config& config : cases) {
    const std::vector<double> got = losses(config, whole);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-10)
          << "step " << i << ", " << test::name_of(config.parallel.tensor) << ", " << config.parallel.sequence.mode
          << " " << config.parallel.sequence.size << ", pipeline " << config.parallel.pipeline.size;
  }
}

// Only one stage reads the field, so without the check the other stages would wait for it.
TEST(BatchFields, NameMissingFieldsOnAllRanksBeforeMessages) {
  for (const distributed::ParallelConfig& parallel :
       {distributed::ParallelConfig{.pipeline = {.size = 2, .micro_batches = 2}},
        distributed::ParallelConfig{.data = 2}})
    comm::run_ranks(2, [&](comm::World& world) {
      const auto engine = initialize(world, config_of(parallel), reader());
      world.traffic().reset();
      const auto named = HasSubstr(
          "[data] the batch must have a field `weights`: got ids, labels, positions; add it where the samples are "
          "made");
      EXPECT_THAT(test::thrown_message([&] { engine->train_step(plain_batch()); }), named);
      EXPECT_THAT(test::thrown_message([&] { engine->evaluate(plain_batch()); }), named);
      for (const char* group : {"pipeline", "data"}) EXPECT_EQ(world.traffic().total(group).calls, 0) << group;
    });
}

TEST(BatchFields, NameMissingFieldsOfTheTask) {
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config_of({}), test::tiny_gpt2());
    tensor::Batch images;
    images.add("images", {at::zeros({2, 3, 4, 4}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
    EXPECT_THAT(test::thrown_message([&] { engine->train_step(images); }), HasSubstr("a field `ids`: got images"));
    tensor::Batch unlabelled;
    unlabelled.add("ids", {at::zeros({2, 4}, at::kLong), {Dim::Row, Dim::Token}});
    EXPECT_THAT(test::thrown_message([&] { engine->train_step(unlabelled); }), HasSubstr("a field `labels`: got ids"));
  });
}

}  // namespace
}  // namespace colossal::train::batch_fields_test
