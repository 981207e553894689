// Every optimizer in whole training steps: the losses of one process under every layout, checkpoints that move between
// layouts, and clipping.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "colossal/train/trainer.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/thrown_message.h"

namespace colossal::train::optimizers_test {
namespace {

constexpr int64_t kSteps = 6;

struct Layout {
  const char* name;
  int data = 1, tensor = 1, pipeline = 1;
  std::string schedule = "1f1b";
};
const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{{"data2", 2, 1, 1},
                                       {"tensor2", 1, 2, 1},
                                       {"pipeline2", 1, 1, 2},
                                       {"chimera2", 1, 1, 2, "chimera"},
                                       {"data2_tensor2_pipeline2", 2, 2, 2}};
  return all;
}

run::Config config_of(const std::string& optimizer, const Layout& layout = {"one"}) {
  run::Config c = test::course_config();
  c.parallel.data = layout.data;
  c.parallel.tensor.size = layout.tensor;
  c.parallel.pipeline.size = layout.pipeline;
  c.parallel.pipeline.schedule = layout.schedule;
  if (layout.pipeline > 1) c.parallel.pipeline.micro_batches = 2;
  c.training.steps = 2 * kSteps;
  c.training.clip = 0.5;
  c.optimizer.name = optimizer;
  c.optimizer.warmup_steps = 2;
  c.optimizer.learning_rate = optimizer == "lars" ? 1 : 0.01;
  if (optimizer == "galore") c.optimizer.rank = 5;
  return c;
}

/// A model without biases, so that no gradient is zero except for rounding, which signs and ratios of most rules would
/// amplify.
models::ModelShape shape() { return test::tiny_llama(); }

constexpr test::Text kText{.vocabulary = 37};

/// Returns the losses of steps [first, last) of a run, which reads two batches alternately.
std::vector<double> train(Engine& engine, int64_t first, int64_t last) {
  std::vector<double> losses;
  for (int64_t step = first; step < last; ++step) losses.push_back(test::train_step(engine, step % 2, kText));
  return losses;
}

/// Runs work(engine) on every rank of a layout and returns the result of rank 0.
template <class Work>
auto on_ranks(const run::Config& config, const Work& work) {
  decltype(work(std::declval<Engine&>())) result{};
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape());
    auto mine = work(*engine);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double limit,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], limit * want[i]) << what << ", step " << i;
}

class EveryOptimizer : public testing::TestWithParam<const char*> {
 protected:
  /// 8-bit moments are rounded in blocks of each rank's elements, so they differ between layouts.
  double limit() const { return std::string(GetParam()) == "adam8bit" ? 2e-3 : 1e-9; }
};

TEST_P(EveryOptimizer, LearnsEquallyUnderEveryLayout) {
  const auto run = [](Engine& engine) { return train(engine, 0, 2 * kSteps); };
  const auto want = on_ranks(config_of(GetParam()), run);
  EXPECT_LT(want.back(), want.front() - 0.01);
  for (const Layout& layout : layouts())
    expect_near(on_ranks(config_of(GetParam(), layout), run), want, limit(), layout.name);
}

// Half of the layouts save, the others resume. Losses equal an uninterrupted run's.
TEST_P(EveryOptimizer, ResumesUnderAnotherLayout) {
  const auto whole = on_ranks(config_of(GetParam()), [](Engine& engine) { return train(engine, 0, 2 * kSteps); });
  const std::vector<double> want(whole.begin() + kSteps, whole.end());
  for (size_t i = 0; i < layouts().size(); ++i) {
    const std::string folder = test::empty_folder(GetParam());
    const Layout &first = layouts()[i], &second = layouts()[(i + 1) % layouts().size()];
    on_ranks(config_of(GetParam(), first), [&](Engine& engine) {
      train(engine, 0, kSteps);
      test::save(engine, folder);
      return 0;
    });
    const auto got = on_ranks(config_of(GetParam(), second), [&](Engine& engine) {
      test::load(engine, folder);
      return train(engine, kSteps, 2 * kSteps);
    });
    expect_near(got, want, limit(), concat(first.name, " to ", second.name));
  }
}

INSTANTIATE_TEST_SUITE_P(Train, EveryOptimizer,
                         testing::Values("sgd", "adam", "adamw", "lion", "lamb", "lars", "adafactor", "came",
                                         "adam8bit", "galore", "muon"),
                         [](const auto& info) { return info.param; });

/// A weight that rank 0 holds under the layouts below; undefined on other stages of a pipeline.
at::Tensor weight(Engine& engine) {
  const at::Tensor value = engine.parameters().at("blocks.0.mlp.down.weight").value;
  return value.defined() ? value.detach().clone() : value;
}

/// The weight after one step of plain SGD, and the result of the step.
std::pair<at::Tensor, StepResult> stepped(double clip, const std::string& by, const Layout& layout = {"one"}) {
  run::Config c = config_of("sgd", layout);
  c.optimizer.momentum = c.optimizer.weight_decay = c.optimizer.warmup_steps = 0;
  c.optimizer.schedule.name = "constant";
  c.optimizer.learning_rate = 1;
  c.training.clip = clip;
  c.training.clip_by = by;
  return on_ranks(c, [](Engine& engine) {
    engine.zero_grad();
    engine.train_step(test::own_batch(engine, 0, kText));
    const StepResult result = engine.step();
    return std::pair(weight(engine), result);
  });
}

TEST(Clipping, BoundsGradientsByNormOrValue) {
  // With a rate of 1 the step is the clipped gradient.
  const auto [free, two] = stepped(0, "norm");
  const at::Tensor start = on_ranks(config_of("sgd"), weight);
  const at::Tensor gradient = start - free;
  const double limit = 0.3 * gradient.abs().max().item<double>();
  const auto near = [](const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-9, 1e-13); };
  for (const Layout& layout : {Layout{"one"}, Layout{"data2", 2}, Layout{"pipeline2", 1, 1, 2}}) {
    const auto [by_norm, norm] = stepped(limit, "norm", layout);
    EXPECT_NEAR(norm.gradient_norm, two.gradient_norm, 1e-9) << layout.name;
    EXPECT_TRUE(near(start - by_norm, gradient * (limit / two.gradient_norm))) << layout.name;
    const auto [by_largest, most] = stepped(limit, "largest", layout);
    EXPECT_GE(most.gradient_norm, gradient.abs().max().item<double>() - 1e-12) << layout.name;
    EXPECT_LT(most.gradient_norm, two.gradient_norm) << layout.name;
    EXPECT_TRUE(near(start - by_largest, gradient * (limit / most.gradient_norm))) << layout.name;
    EXPECT_TRUE(near(start - stepped(limit, "value", layout).first, gradient.clamp(-limit, limit))) << layout.name;
  }
}

TEST(Resume, NamesBothOptimizersIfTheyDiffer) {
  const std::string folder = test::empty_folder("another");
  run::Config c;
  c.run.folder = folder + "/run";
  c.data.path = folder + "/text.txt";
  std::filesystem::create_directories(folder);
  std::ofstream(c.data.path) << std::string(200, 'a') << std::string(200, 'b');
  c.model = {.name = "gpt2-tiny", .hidden = 16, .layers = 1, .heads = 2, .positions = 16};
  c.data.sequence = 16;
  c.training = {.steps = 2, .batch_size = 2, .evaluate_batches = 0};
  c.optimizer.warmup_steps = 0;
  const auto run = [](const run::Config& config, Start start) {
    comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
      TrainerOptions options{.start = start};
      options.stop_requested = [] { return true; };
      Trainer(world, config, options).run();
    });
  };
  run(c, Start::New);
  c.optimizer.name = "adam";  // its states have the names and shapes of AdamW's
  c.parallel.data = 2;
  EXPECT_EQ(
      test::thrown_message([&] { run(c, Start::Resume); }),
      "[optimizer] " + c.run.folder +
          "/checkpoints/step-000001 is from a different run: it was made with adamw, this run uses adam, which has "
          "different states; resume with optimizer.name = \"adamw\", or start a new run from its weights "
          "(model.from) (rank 0 of 2)\nChanged since it was saved: parallel.data = 1 -> "
          "2, optimizer.name = \"adamw\" -> \"adam\". Restore these values to continue from it, choose another "
          "run.folder, or add --overwrite to start from scratch");
  c.optimizer.name = "adamw";
  EXPECT_EQ(test::thrown_message([&] { run(c, Start::Resume); }), "");
}

}  // namespace
}  // namespace colossal::train::optimizers_test
