// What layers announce in a training step is what the families' formulas say, and ranks share it out.
#include "colossal/tensor/flops.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <mutex>

#include "colossal/comm/run_ranks.h"
#include "colossal/models/registry.h"
#include "colossal/models/task.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::train::flops_test {
namespace {

constexpr int64_t kRows = 8, kSequence = 6;

/// Sizes that divide under every layout below: padding is computed too.
models::ModelShape even_gpt2() {
  models::ModelShape shape = test::tiny_gpt2();
  shape.vocabulary = shape.ffn = 48;
  shape.layers = 4;
  return shape;
}

models::ModelShape even_llama() {
  models::ModelShape shape = test::tiny_llama();
  shape.vocabulary = 48;
  shape.ffn = 24;
  shape.kv_heads = shape.layers = 4;
  return shape;
}

models::ModelShape even_vit() {
  models::ModelShape shape = test::tiny_vit();
  shape.ffn = 48;
  return shape;
}

models::ModelShape even_bert() {
  models::ModelShape shape = test::tiny_bert();
  shape.vocabulary = shape.ffn = 48;
  return shape;
}

/// Operations of a sample. The formula takes half of the square for what a causal mask lets through, where a token sees
/// itself too: S (S + 1) / 2 pairs, 12 operations each and feature. And it counts a gradient of the images, which
/// nobody wants: a third of what stands before the blocks.
double exact(const models::ModelShape& shape) {
  const models::Costs costs = models::costs_of(shape, kSequence);
  if (shape.task().reads == models::Reads::Images) return costs.sum() - costs.first / 3;
  if (!shape.task().generates()) return costs.sum();
  return costs.sum() + static_cast<double>(6 * shape.layers * shape.heads * shape.head_dim * kSequence);
}

/// What all ranks together announce in a step on kRows samples.
double announced(const models::ModelShape& shape, const distributed::ParallelConfig& parallel,
                 const std::string& recompute = "none") {
  double sum = 0;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(parallel.ranks()), [&](comm::World& world) {
    run::Config config;
    config.parallel = parallel;
    config.memory.recompute = recompute;
    config.training.batch_size = kRows;
    auto engine = initialize(world, config, shape);
    engine->zero_grad();
    const tensor::FlopCount count;
    engine->train_step(test::batch_of_ones(shape, kRows / parallel.data, kSequence));
    engine->step();
    const std::lock_guard lock(mutex);
    sum += count.total();
  });
  return sum;
}

distributed::ParallelConfig with(const parallel::TensorConfig& tensor, int64_t data = 1,
                                 const parallel::PipelineConfig& pipeline = {}, int64_t zero = 0) {
  distributed::ParallelConfig config;
  config.tensor = tensor;
  config.data = data;
  config.pipeline = pipeline;
  config.zero = zero;
  return config;
}

TEST(Flops, AnnouncedByOneProcessAreThoseOfTheFormula) {
  for (const models::ModelShape& shape : {even_gpt2(), even_llama(), even_vit(), even_bert()})
    EXPECT_EQ(announced(shape, {}), kRows * exact(shape)) << shape.architecture->name;
}

TEST(Flops, OfRanksAddUpToThoseOfOneProcess) {
  for (const models::ModelShape& shape : {even_gpt2(), even_llama()})
    for (const auto& parallel :
         {with({.size = 2}), with({.size = 4}), with({.size = 4, .mode = "2d"}),
          with({.size = 8, .mode = "2.5d", .depth = 2}), with({.size = 8, .mode = "3d"}), with({}, 4, {}, 3),
          with({}, 2, {.size = 2, .micro_batches = 2}), with({}, 1, {.size = 2, .schedule = "zero-bubble-v"}),
          with({.size = 2}, 2, {.size = 2, .schedule = "chimera"}, 1)})
      EXPECT_EQ(announced(shape, parallel), kRows * exact(shape))
          << shape.architecture->name << ", tensor " << parallel.tensor.size << " " << parallel.tensor.mode << ", data "
          << parallel.data << ", pipeline " << parallel.pipeline.size;
  // Patches and classes are whole on every rank where features are not split between blocks.
  EXPECT_EQ(announced(even_vit(), with({.size = 4, .mode = "2d"}, 2)), kRows * exact(even_vit()));
}

TEST(Flops, OfRecomputedBlocksAreAnnouncedAgain) {
  models::ModelShape more = even_gpt2();
  ++more.layers;
  const double block = exact(more) - exact(even_gpt2());
  EXPECT_EQ(announced(even_gpt2(), {}, "block") - announced(even_gpt2(), {}),
            kRows * static_cast<double>(even_gpt2().layers) * block / 3);
}

}  // namespace
}  // namespace colossal::train::flops_test
