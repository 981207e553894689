// Packed weights in models that train: they need their values, and are packed again after training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/infer/generate.h"
#include "colossal/nn/packed_weights.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::packed_training_test {
namespace {

using testing::HasSubstr;

constexpr test::Text kText{.vocabulary = 37};

// The weight is on one of two stages, and the ranks of both must throw the error.
TEST(PackedTraining, RefusesPackedWeightsWithoutValues) {
  run::Config config = test::course_config();
  config.precision.mode = "fp32";
  config.parallel.pipeline.size = 2;
  const models::ModelShape shape = test::tiny_llama();
  nn::PackedWeights layers({});
  std::mutex mutex;
  const nn::Adapter packing{.product = [&](auto product, const nn::Parameter& weight, nn::Parameters&) {
    const std::lock_guard lock(mutex);
    return weight.name.starts_with("blocks.0.") ? layers.wrap(std::move(product), weight) : product;
  }};
  comm::run_ranks(2, [&](comm::World& world) {
    const std::string message =
        test::thrown_message([&] { initialize(world, config, NamedModel{.shape = shape, .adapter = packing}); });
    EXPECT_THAT(message, HasSubstr("[prepacked] packed weights without their values have no gradients: got blocks.0."));
    EXPECT_THAT(message, HasSubstr("in a model that trains; set WeightPacking::keeps_values"));
  });
}

// Training, packing and generation alternate, with packed weights inside the adapters.
TEST(PackedTraining, GeneratesWithRepackedWeightsAfterTraining) {
  const std::string folder = test::empty_folder("repacked");
  run::Config config = test::course_config();
  config.precision.mode = "fp32";
  config.memory.recompute = "block";  // forward passes of recomputed layers have no gradients
  const models::ModelShape shape = test::tiny_llama();
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
    const auto engine = initialize(world, config, NamedModel{.shape = shape, .adapter = packed.adapter});
    const auto plain = initialize(world, config, shape);
    std::set<std::vector<int64_t>> seen;
    for (int64_t round = 0; round < 3; ++round) {
      const auto tokens = generated(*engine, packed);
      test::save(*engine, folder);
      Packed fresh;
      const auto loaded = initialize(world, config, NamedModel{.shape = shape, .adapter = fresh.adapter});
      test::load(*loaded, folder);
      EXPECT_EQ(tokens, generated(*loaded, fresh)) << "round " << round;
      seen.insert(tokens);
      for (int64_t step = 0; step < 4; ++step)
        EXPECT_EQ(test::train_step(*engine, 4 * round + step, kText),
                  test::train_step(*plain, 4 * round + step, kText));
    }
    EXPECT_GT(seen.size(), 1u) << "what is generated follows from what was learnt";
  });
}

}  // namespace
}  // namespace colossal::train::packed_training_test
