// Training under each mode of tensor parallelism: the loss curve of one process, and checkpoints that move between any
// two modes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::train::tensor_modes_test {
namespace {

using parallel::TensorConfig;

std::vector<TensorConfig> modes() {
  return {
      {}, {.size = 4}, {.size = 4, .mode = "2d"}, {.size = 8, .mode = "2.5d", .depth = 2}, {.size = 8, .mode = "3d"}};
}

run::Config config_of(const TensorConfig& tensor, int64_t data) {
  run::Config c = test::course_config();
  c.parallel.data = data;
  c.parallel.tensor = tensor;
  c.optimizer.epsilon = 1e-3;  // a gradient that is zero except for rounding must not become a whole step
  return c;
}

std::vector<double> losses(const TensorConfig& tensor, int64_t data) {
  std::vector<double> out;
  comm::run_ranks(static_cast<int>(data * tensor.size), [&](comm::World& world) {
    auto engine = initialize(world, config_of(tensor, data), test::tiny_gpt2());
    for (int step = 0; step < 50; ++step) {
      const double loss = test::train_step(*engine, step % 5);
      if (world.rank() == 0) out.push_back(loss);
    }
  });
  return out;
}

class TensorModes : public testing::TestWithParam<TensorConfig> {};

TEST_P(TensorModes, EqualOneProcessForFiftySteps) {
  static const std::vector<double> want = losses({}, 1);
  EXPECT_LT(want.back(), want.front());
  for (const int64_t data : {1, 2}) {
    const std::vector<double> got = losses(GetParam(), data);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-10 * want[i]) << "step " << i + 1 << ", data " << data;
  }
}

// A checkpoint saved after two steps under this mode is loaded under every mode. Weights and optimizer states are
// bitwise equal to one process that loads it.
TEST_P(TensorModes, LoadCheckpointsUnderEveryMode) {
  const std::string folder = test::empty_folder(test::name_of(GetParam()));
  comm::run_ranks(static_cast<int>(GetParam().size), [&](comm::World& world) {
    auto engine = initialize(world, config_of(GetParam(), 1), test::tiny_gpt2());
    test::train(*engine, 0, 2);
    test::save(*engine, folder);
  });
  std::map<std::string, at::Tensor> whole;
  const auto load = [&](const TensorConfig& tensor, const auto& see) {
    comm::run_ranks(static_cast<int>(tensor.size), [&](comm::World& world) {
      auto engine = initialize(world, config_of(tensor, 1), test::tiny_gpt2());
      checkpoint::TrainingState state = engine->state();
      checkpoint::load(*checkpoint::latest(folder), state, engine->mesh().all(), engine->mesh().coordinates());
      for (const auto& t : state.tensors) see(t, engine->mesh().coordinates());
    });
  };
  load({}, [&](const checkpoint::NamedTensor& t, const tensor::MeshCoordinates&) { test::put_part(whole[t.name], t); });
  EXPECT_GT(whole.size(), 3 * 20u);  // parameters and both moments
  for (const TensorConfig& mode : modes())
    load(mode, [&](const checkpoint::NamedTensor& t, const tensor::MeshCoordinates& coordinates) {
      test::expect_equal(t.value.clone(), test::local_part(whole.at(t.name), t, coordinates),
                         t.name + " under " + test::name_of(mode));
    });
}

INSTANTIATE_TEST_SUITE_P(Modes, TensorModes, testing::ValuesIn(modes()),
                         [](const auto& info) { return test::name_of(info.param); });

TEST(TensorSizes, RefuseInvalidModes) {
  const auto complaint = [](const TensorConfig& tensor) {
    return test::thrown_message([&] { config_of(tensor, 1).validate(); });
  };
  EXPECT_EQ(complaint({.size = 12, .mode = "2.5d", .depth = 2}),
            "[2.5d] tensor.size must be depth * q^2: got 12, depth 2; nearest: 8, or tensor.depth 3");
  EXPECT_EQ(complaint({.size = 6, .mode = "2d"}), "[2d] tensor.size must be q^2: got 6; nearest: 4");
  EXPECT_EQ(complaint({.size = 9, .mode = "3d"}), "[3d] tensor.size must be l^3: got 9; nearest: 8");
  EXPECT_EQ(complaint({.size = 4, .mode = "2d", .depth = 2}),
            "[parallel] tensor.depth needs mode 2.5d: got depth 2 with mode 2d");
  EXPECT_EQ(complaint({.size = 27, .mode = "3d"}),
            "[training] batch_size must be divisible by parallel.data * training.accumulate * the 9 parts of mode 3d: "
            "got 8, 1 * 1 * 9; the nearest is 9");
}

TEST(TensorSizes, RefuseHiddenSizesBeforeMessages) {
  models::ModelShape shape = test::tiny_gpt2();
  shape.hidden = 25;
  const std::string message = test::thrown_message([&] {
    comm::run_ranks(4, [&](comm::World& world) { initialize(world, config_of({.size = 4, .mode = "2d"}, 1), shape); });
  });
  EXPECT_NE(message.find("[2d] hidden must be divisible by the 2 ranks that split features: got 25; nearest: 26"),
            std::string::npos)
      << message;
}

TEST(TensorSizes, RefuseImageTokensBeforeMessages) {
  const auto complaint = [](const distributed::ParallelConfig& parallel) {
    return test::thrown_message([&] {
      comm::run_ranks(static_cast<int>(parallel.ranks()), [&](comm::World& world) {
        run::Config config = config_of({}, 1);
        config.parallel = parallel;
        initialize(world, config, test::tiny_vit());  // four patches and a class token
      });
    });
  };
  EXPECT_NE(complaint({.tensor = {.size = 2, .sequence = true}})
                .find("must be divisible by the 2 ranks that split them: got 5"),
            std::string::npos);
  EXPECT_NE(complaint({.sequence = {.size = 6}}).find("each of the 6 ranks of parallel.sequence must have a token"),
            std::string::npos);
  EXPECT_EQ(complaint({.sequence = {.size = 2, .mode = "ring"}}), "");
}

}  // namespace
}  // namespace colossal::train::tensor_modes_test
