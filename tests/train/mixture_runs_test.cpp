// Training of mixtures of experts: every optimizer, fp8, checkpoints between layouts, balance biases, and runs in which
// experts go empty at random.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/external_names.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"

namespace colossal::train::mixture_runs_test {
namespace {

constexpr test::Text kText{.vocabulary = 37};

models::ModelShape mixture(int64_t count = 4, int64_t used = 2) {
  models::ModelShape shape = test::tiny_llama();
  models::LlamaSizes own;
  own.experts.count = count;
  own.experts.used = used;
  own.experts.ffn = 12;
  own.experts.bias = true;
  own.experts.bias_rate = 0.001;
  own.experts.balance_loss = 0.05;
  shape.own = own;
  shape.set(models::MixtureSizes{count});
  return shape;
}

struct Layout {
  const char* name;
  int64_t data = 1, expert = 1, tensor = 1, pipeline = 1, zero = 0;
};

run::Config config_of(const Layout& layout, const std::string& optimizer = "adamw") {
  run::Config c = test::course_config();
  c.parallel.data = layout.data;
  c.parallel.expert.size = layout.expert;
  c.parallel.tensor.size = layout.tensor;
  c.parallel.pipeline.size = layout.pipeline;
  c.parallel.zero = layout.zero;
  if (layout.pipeline > 1)
    c.parallel.pipeline.micro_batches = 2;
  else
    c.training.accumulate = 2;
  c.training.steps = 8;
  c.training.clip = 0.5;
  c.optimizer.name = optimizer;
  c.optimizer.warmup_steps = 2;
  c.optimizer.learning_rate = optimizer == "lars" ? 1 : 0.01;
  if (optimizer == "galore") c.optimizer.rank = 5;
  return c;
}

/// Runs work(engine) on every rank of a layout and returns the result of rank 0.
template <class Work>
auto on_ranks(const run::Config& config, const models::ModelShape& shape, const Work& work) {
  decltype(work(std::declval<Engine&>())) result{};
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
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

class MixtureOptimizers : public testing::TestWithParam<const char*> {};

TEST_P(MixtureOptimizers, LearnEquallyUnderEveryLayout) {
  const auto run = [](Engine& engine) { return test::train(engine, 0, 8, kText); };
  const auto want = on_ranks(config_of({"one"}, GetParam()), mixture(), run);
  // 8-bit moments are rounded in blocks of each rank's elements, so they differ between layouts.
  const double limit = std::string(GetParam()) == "adam8bit" ? 2e-3 : 1e-9;
  for (const Layout& layout : {Layout{"expert2_zero2", 1, 2, 1, 1, 2}, Layout{"data2_expert2_zero3", 2, 2, 1, 1, 3},
                               Layout{"expert2_tensor2", 1, 2, 2}, Layout{"expert2_pipeline2", 1, 2, 1, 2}})
    expect_near(on_ranks(config_of(layout, GetParam()), mixture(), run), want, limit, layout.name);
}

INSTANTIATE_TEST_SUITE_P(Train, MixtureOptimizers,
                         testing::Values("sgd", "adamw", "lion", "lamb", "lars", "adafactor", "came", "adam8bit",
                                         "galore", "muon"),
                         [](const auto& info) { return std::string(info.param); });

TEST(MixtureRuns, MoveTheSameBiasesInEveryLayout) {
  const auto biases = [](Engine& engine) {
    test::train(engine, 0, 6, kText);
    std::map<std::string, std::vector<float>> all;
    for (const nn::Buffer& buffer : engine.parameters().buffers()) {
      const float* first = buffer.value.const_data_ptr<float>();
      all[buffer.name] = {first, first + buffer.value.numel()};
    }
    return all;
  };
  const auto want = on_ranks(config_of({"one"}), mixture(), biases);
  ASSERT_FALSE(want.empty());
  EXPECT_NE(want.begin()->second, std::vector<float>(4));
  EXPECT_EQ(on_ranks(config_of({"expert4", 1, 4}), mixture(), biases), want);
  EXPECT_EQ(on_ranks(config_of({"data2_tensor2", 2, 1, 2}), mixture(), biases), want);
}

TEST(MixtureRuns, ReportLoadsAndLossOfOneProcess) {
  const auto rows = [](Engine& engine) {
    engine.zero_grad();
    engine.train_step(test::own_batch(engine, 0, kText));
    std::map<std::string, double> all;
    for (const Metric& row : engine.step().rows) all[row.name] = number_of(row);
    return all;
  };
  const auto want = on_ranks(config_of({"one"}), mixture(), rows);
  ASSERT_EQ(want.size(), 4u);
  EXPECT_EQ(want.at("rank_load"), 1);
  EXPECT_GT(want.at("expert_load"), 1);
  auto got = on_ranks(config_of({"data2_expert2_tensor2", 2, 2, 2}), mixture(), rows);
  EXPECT_GT(got.at("rank_load"), 1);
  EXPECT_LE(got.at("rank_load"), got.at("expert_load") + 1e-12) << "one expert on each rank";
  EXPECT_EQ(got.at("expert_load"), want.at("expert_load"));
  EXPECT_NEAR(got.at("balance_loss"), want.at("balance_loss"), 1e-12);
}

// Weights, states and biases are equal bit for bit, whatever the numbers of ranks that save and load.
TEST(MixtureRuns, LoadCheckpointsOfOtherNumbersOfExpertRanks) {
  const Layout layouts[] = {{"expert4", 1, 4, 1, 1, 1},
                            {"expert2_tensor2", 1, 2, 2},
                            {"one"},
                            {"data2_expert2_zero3", 2, 2, 1, 1, 3},
                            {"tensor3", 1, 1, 3}};
  const auto values = [](Engine& engine) {
    std::map<std::string, at::Tensor> all;
    for (const checkpoint::NamedTensor& t : engine.state().tensors) test::put_part(all[t.name], t);
    return all;
  };
  std::string folder = test::empty_folder("first");
  std::map<std::string, at::Tensor> want = on_ranks(config_of(layouts[2]), mixture(), [&](Engine& engine) {
    test::train(engine, 0, 3, kText);
    test::save(engine, folder);
    return values(engine);
  });
  for (const Layout& layout : layouts) {
    const std::string next = test::empty_folder(layout.name);
    on_ranks(config_of(layout), mixture(), [&](Engine& engine) {
      test::load(engine, folder);
      test::save(engine, next);
      return 0;
    });
    const auto got = on_ranks(config_of(layouts[2]), mixture(), [&](Engine& engine) {
      test::load(engine, next);
      return values(engine);
    });
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << layout.name << ": " << name;
    folder = next;
  }
}

/// Sets the balance biases so that a step can choose from `alive` of 8 experts at random alone, with the same values on
/// all ranks. A softmax is below 1, so 2 outweighs it.
void leave_experts(Engine& engine, int64_t step, int64_t alive) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(77 + step));
  const at::Tensor order = at::randperm(8, generator, at::TensorOptions().dtype(at::kLong));
  const at::Tensor biases = at::full({8}, -2.0, at::kFloat).index_fill_(0, order.narrow(0, 0, alive), 0);
  for (nn::Buffer& buffer : engine.parameters().buffers())
    if (buffer.value.defined()) buffer.value.copy_(biases);
}

// In each step 1 to 4 of 8 experts can be chosen, others each time. Then whole ranks have no token. A hang ends by the
// watchdog.
TEST(MixtureRuns, NeverWaitWhenExpertsGoEmpty) {
  constexpr int64_t kSteps = 200;
  models::ModelShape shape = mixture(8, 1);
  auto own = shape.own.as<models::LlamaSizes>();
  own.experts.bias_rate = 0;
  shape.own = own;
  for (const Layout& layout : {Layout{"data2_expert2_zero3", 2, 2, 1, 1, 3}, Layout{"expert2_pipeline2", 1, 2, 1, 2, 1},
                               Layout{"expert4_tensor2", 1, 4, 2, 1, 2}}) {
    run::Config config = config_of(layout);
    config.precision.mode = "fp32";
    config.parallel.chunk_mib = 0.002;
    config.training.steps = kSteps;
    config.optimizer.learning_rate = 0.05;  // the router moves a lot
    const auto emptied = on_ranks(config, shape, [&](Engine& engine) {
      int64_t steps_of_one = 0, steps_of_one_rank = 0;
      for (int64_t step = 0; step < kSteps; ++step) {
        const int64_t alive = 1 + step % 4;
        leave_experts(engine, step, alive);
        engine.zero_grad();
        EXPECT_TRUE(std::isfinite(engine.train_step(test::own_batch(engine, step, kText)))) << layout.name;
        std::map<std::string, double> rows;
        for (const Metric& row : engine.step().rows) rows[row.name] = number_of(row);
        // At most `alive` experts share all tokens, so the busiest one has that multiple of the mean at least.
        EXPECT_GE(rows.at("expert_load") * static_cast<double>(alive), 8 - 1e-9) << layout.name << ", step " << step;
        steps_of_one += rows.at("expert_load") == 8;
        steps_of_one_rank += rows.at("rank_load") == static_cast<double>(layout.expert * layout.tensor);
      }
      return std::pair(steps_of_one, steps_of_one_rank);
    });
    EXPECT_GE(emptied.first, kSteps / 4) << layout.name << ": one expert had all tokens of a layer";
    EXPECT_GE(emptied.second, kSteps / 4) << layout.name << ": one rank had all tokens of a layer";
  }
}

// The first steps overflow, because the loss scale is far too large.
TEST(MixtureRuns, KeepBiasesInSkippedSteps) {
  run::Config config = config_of({"expert2", 1, 2});
  config.precision.mode = "fp16";
  config.precision.loss_scale = 0x1p30;
  const auto moved = [&](Engine& engine) {
    const auto largest = [&] {
      double most = 0;
      for (const nn::Buffer& buffer : engine.parameters().buffers())
        if (buffer.name.ends_with("router.bias")) most = std::max(most, buffer.value.abs().max().item<double>());
      return most;
    };
    int64_t skipped = 0, taken = 0;
    for (int64_t step = 0; step < 40 && taken == 0; ++step) {
      engine.zero_grad();
      engine.train_step(test::own_batch(engine, step, kText));
      const bool is_skipped = engine.step().skipped;
      EXPECT_EQ(largest() == 0, is_skipped) << "step " << step;
      skipped += is_skipped, taken += !is_skipped;
    }
    return std::pair(skipped, taken);
  };
  const auto [skipped, taken] = on_ranks(config, mixture(), moved);
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(taken, 1);
}

/// Returns the values of the balance biases by name.
std::map<std::string, at::Tensor> biases_of(nn::Parameters& parameters) {
  std::map<std::string, at::Tensor> all;
  for (const nn::Buffer& buffer : parameters.buffers())
    if (buffer.name.ends_with("router.bias")) all[buffer.name] = buffer.value.clone();
  return all;
}

void expect_biases(nn::Parameters& parameters, const std::map<std::string, at::Tensor>& want, const char* where) {
  const auto got = biases_of(parameters);
  ASSERT_EQ(got.size(), want.size()) << where;
  for (const auto& [name, value] : want) EXPECT_TRUE(at::equal(got.at(name), value)) << where << ": " << name;
}

// DeepSpeed #8358: balance biases are lost without a message.
TEST(MixtureRuns, KeepTheBiasesOfAFolder) {
  models::ModelShape shape = test::tiny_deepseek();
  auto own = shape.own.as<models::DeepseekSizes>();
  own.experts.bias_rate = 0;  // as of a folder
  shape.own = own;
  const std::string folder = test::empty_folder("folder"), steps = test::empty_folder("steps"),
                    exported = test::empty_folder("exported");
  const auto names = run::external_names(shape);
  const auto write = [&](Engine& engine, const std::string& to) {
    checkpoint::export_weights(to, engine.parameters(), names, shape.architecture->hugging_face.to_json(shape),
                               engine.mesh().all());
  };
  std::map<std::string, at::Tensor> want;
  on_ranks(config_of({"one"}), shape, [&](Engine& engine) {
    for (nn::Buffer& buffer : engine.parameters().buffers())
      buffer.value.copy_(at::linspace(-0.75, 1.5, buffer.value.numel()));
    want = biases_of(engine.parameters());
    write(engine, folder);
    return 0;
  });
  ASSERT_FALSE(want.empty());
  on_ranks(config_of({"expert2", 1, 2}), shape, [&](Engine& engine) {
    checkpoint::import_weights(folder, engine.parameters(), engine.weights(), names);
    engine.weights_loaded();
    test::train(engine, 0, 2, kText);
    expect_biases(engine.parameters(), want, "run");
    test::save(engine, steps);
    return 0;
  });
  on_ranks(config_of({"tensor2", 1, 1, 2}), shape, [&](Engine& engine) {
    test::load(engine, steps);
    expect_biases(engine.parameters(), want, "checkpoint");
    write(engine, exported);
    return 0;
  });
  on_ranks(config_of({"one"}), shape, [&](Engine& engine) {
    checkpoint::import_weights(exported, engine.parameters(), engine.weights(), names);
    expect_biases(engine.parameters(), want, "export");
    return 0;
  });
}

TEST(MixtureRuns, JoinScalesOfExpertsInFp8) {
  run::Config one = config_of({"one"}), two = config_of({"expert2", 1, 2});
  for (run::Config* config : {&one, &two}) {
    config->precision.mode = "fp8";
    config->precision.fp8.scaling = "delayed";
  }
  std::map<std::string, at::Tensor> histories;  // of rank 0
  const auto run = [&](Engine& engine) {
    const std::vector<double> losses = test::train(engine, 0, 6, kText);
    if (engine.mesh().world().rank() > 0) return losses;
    histories.clear();
    for (const nn::Buffer& buffer : engine.parameters().buffers())
      if (buffer.name.find(".experts.") != std::string::npos && buffer.name.ends_with("fp8_history"))
        histories[buffer.name] = buffer.value.clone();
    return losses;
  };
  const auto want = on_ranks(one, mixture(), run);
  expect_near(on_ranks(two, mixture(), run), want, 2e-2, "expert2");
  EXPECT_EQ(histories.size(), static_cast<size_t>(mixture().layers * 2)) << "one for each stack";
  for (const auto& [name, history] : histories) {
    ASSERT_EQ(history.dim(), 3) << name;
    EXPECT_EQ(history.size(0), 4) << name;
    EXPECT_TRUE((history.amax(at::IntArrayRef{1, 2}) > 0).all().item<bool>()) << name << ", experts of both ranks";
  }
}

}  // namespace
}  // namespace colossal::train::mixture_runs_test
