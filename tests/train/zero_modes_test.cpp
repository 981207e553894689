// Training with sharded states, gradients or parameters: master weights, loss scaling, and checkpoints that move
// between any two shardings.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "colossal/base/error.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/train/loss_scale.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"
#include "train/zero_runs.h"

namespace colossal::train::zero_modes_test {
namespace {

// ----------------------------------------------------------------------------------------------------------------
// master weights

TEST(Masters, KeepSmallUpdates) {
  run::Config with = config_of({.precision = "bf16"});
  with.optimizer.learning_rate = 1e-5;  // steps far below half a unit in the last place of most weights
  run::Config without = with, by_chance = with;
  without.precision.masters = by_chance.precision.masters = false;
  by_chance.optimizer.stochastic_rounding = true;
  const auto first = [](const run::Config& config) { return run(config, 12).weights; };
  const auto start = run(with, 0).weights, exact = first(with), lost = first(without), chance = first(by_chance);
  const auto moved = [&](const std::vector<checkpoint::NamedTensor>& weights) {
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i)
      sum += (weights[i].value.clone().to(at::kDouble) - start[i].value.clone().to(at::kBFloat16).to(at::kDouble))
                 .abs()
                 .sum()
                 .item<double>();
    return sum;
  };
  EXPECT_EQ(exact[0].value.scalar_type(), at::kFloat);
  EXPECT_EQ(lost[0].value.scalar_type(), at::kBFloat16);
  EXPECT_LT(moved(lost), 0.5 * moved(chance));  // values rounded to nearest mostly do not change
}

TEST(Masters, StayOptionalForBf16WithMicroBatches) {
  for (const char* rule : {"adamw", "sgd", "lion", "lamb", "adam8bit"}) {
    run::Config config = config_of({.zero = 2, .data = 2, .precision = "bf16", .optimizer = rule});
    config.precision.masters = false;
    config.training.accumulate = 3;
    const auto losses = run(config, 3).losses;
    EXPECT_TRUE(std::isfinite(losses.back())) << rule;
  }
}

// ------------------------------------------------------------------------------------------------------------- loss
// scale

/// The rule, implemented independently: halve and skip on overflow, double after `growth` good steps.
TEST(LossScale, FollowsTheRuleForAThousandStepsWithOverflows) {
  run::PrecisionConfig config;
  config.mode = "fp16";
  config.loss_scale = 1024;
  config.loss_scale_growth = 7;
  LossScale scale(config);
  double want = 1024;
  int64_t good = 0, skipped = 0;
  std::mt19937 random(3);
  for (int step = 0; step < 1000; ++step) {
    const bool overflows = want > 1 && random() % 9 == 0;
    const double norm = overflows ? (step % 2 ? std::numeric_limits<double>::infinity() : std::nan("")) : 1.5;
    EXPECT_EQ(scale.accepts(norm), !overflows);
    if (overflows)
      want /= 2, good = 0, ++skipped;
    else if (++good == 7)
      want = std::min(want * 2, 16777216.0), good = 0;
    ASSERT_EQ(scale.value(), want) << "step " << step;
    if (step % 100 == 50) {  // restores the state, as from a checkpoint
      LossScale other(config);
      other.restore(scale.state());
      scale = other;
    }
  }
  EXPECT_EQ(scale.skipped(), skipped);
  EXPECT_GT(skipped, 50);
}

TEST(LossScale, EqualsOneWithoutFp16) {
  run::PrecisionConfig config;
  for (const char* mode : {"fp32", "fp64", "bf16", "fp8"}) {
    config.mode = mode;
    EXPECT_EQ(LossScale(config).value(), 1) << mode;
    EXPECT_TRUE(LossScale(config).accepts(std::nan(""))) << "an error for the engine to tell";
  }
}

TEST(LossScale, RestartsIfTheCheckpointHasNone) {
  run::PrecisionConfig bf16, fp16;
  bf16.mode = "bf16";
  fp16.mode = "fp16";
  LossScale scale(fp16);
  scale.restore(LossScale(bf16).state());
  EXPECT_EQ(scale.value(), 65536);
}

TEST(LossScale, ClipsByValueWithinTheRangeOfFp16) {
  run::Config config = config_of({.precision = "fp16"});
  config.training.clip_by = "value";
  config.training.clip = 10;  // times the scale it exceeds the range of fp16
  EXPECT_TRUE(std::isfinite(run(config, 3).losses.back()));
}

// An overflow on one rank counts on all: all ranks skip the step, and the results equal a run without it.
TEST(LossScale, SkipsTheStepOnAllRanksIfOneOverflows) {
  for (const int64_t zero : {0, 1, 2, 3})
    comm::run_ranks(4, [&](comm::World& world) {
      const auto engine =
          initialize(world, config_of({.zero = zero, .data = 2, .tensor = 2, .precision = "fp16"}), test::tiny_gpt2());
      test::train_step(*engine, 0, kText);
      std::vector<at::Tensor> before, after;
      for (const auto& t : engine->state().tensors) before.push_back(t.value.clone());
      engine->zero_grad();
      engine->train_step(test::own_batch(*engine, 1, kText));
      // The overflow is in a shard that only one rank holds; unsharded gradients are equal on all replicas.
      if (world.rank() == 1)
        engine->store().shards()[0].lease()->gradients[0] = std::numeric_limits<double>::infinity();
      const StepResult result = engine->step();
      EXPECT_TRUE(result.skipped) << "zero " << zero;
      EXPECT_EQ(engine->steps_done(), 2);
      EXPECT_EQ(engine->state().progress["loss_scale"]["value"], 32768);
      EXPECT_EQ(engine->state().progress["loss_scale"]["skipped"], 1);
      for (const auto& t : engine->state().tensors) after.push_back(t.value.clone());
      for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(at::equal(before[i], after[i]));
    });
}

TEST(LossScale, HalvesATooLargeScaleUntilItFits) {
  run::Config config = config_of({.zero = 2, .data = 2, .precision = "fp16"});
  config.precision.loss_scale = std::pow(2.0, 30);
  comm::run_ranks(2, [&](comm::World& world) {
    const auto engine = initialize(world, config, test::tiny_gpt2());
    double first = 0, last = 0;
    for (int64_t step = 0; step < 40; ++step) {
      last = test::train_step(*engine, 0, kText);
      if (step == 0) first = last;
    }
    const auto state = engine->state().progress["loss_scale"];
    EXPECT_GT(state["skipped"], 3);
    EXPECT_LT(state["value"], config.precision.loss_scale);
    EXPECT_LT(last, first - 0.3);
  });
}

// ------------------------------------------------------------------------------------------------------------
// checkpoints

std::vector<Layout> layouts() {
  return {{.name = "one"},
          {.name = "zero1_data2", .zero = 1, .data = 2},
          {.name = "zero2_data3", .zero = 2, .data = 3},
          {.name = "zero3_data4_in_pairs", .zero = 3, .data = 4, .sharers = 2},
          {.name = "zero3_data2_tensor2", .zero = 3, .data = 2, .tensor = 2},
          {.name = "zero2_data2_pipeline2", .zero = 2, .data = 2, .pipeline = 2}};
}

/// Returns the logical tensors of a checkpoint, loaded by one process.
std::map<std::string, at::Tensor> whole_state(const std::string& folder, Layout one) {
  std::map<std::string, at::Tensor> whole;
  comm::run_ranks(1, [&](comm::World& world) {
    const auto engine = initialize(world, config_of(one), test::tiny_gpt2());
    checkpoint::TrainingState state = engine->state();
    checkpoint::load(*checkpoint::latest(folder), state, engine->mesh().all(), engine->mesh().coordinates());
    for (const auto& t : state.tensors) test::put_part(whole[t.name], t);
  });
  return whole;
}

class Checkpoints : public testing::TestWithParam<std::tuple<Layout, std::string>> {};

// A checkpoint saved under one sharding is loaded under every other. Master weights and moments are bitwise equal, and
// parameters are the rounded master weights.
TEST_P(Checkpoints, MoveBetweenStagesAndNumbersOfRanks) {
  auto [from, precision] = GetParam();
  from.precision = precision;
  const std::string folder = test::empty_folder(from.name + precision);
  comm::run_ranks(from.ranks(), [&, &from = from](comm::World& world) {
    const auto engine = initialize(world, config_of(from), test::tiny_gpt2());
    for (int64_t step = 0; step < 3; ++step) test::train_step(*engine, step, kText);
    test::save(*engine, folder);
  });
  const auto whole = whole_state(folder, {.precision = precision});
  for (Layout to : layouts()) {
    to.precision = precision;
    comm::run_ranks(to.ranks(), [&](comm::World& world) {
      const auto engine = initialize(world, config_of(to), test::tiny_gpt2());
      checkpoint::TrainingState state = engine->state();
      checkpoint::load(*checkpoint::latest(folder), state, engine->mesh().all(), engine->mesh().coordinates());
      engine->loaded(state);
      EXPECT_EQ(engine->steps_done(), 3);
      for (const auto& t : state.tensors)
        test::expect_equal(t.value.clone(), test::local_part(whole.at(t.name), t, engine->mesh().coordinates()),
                           t.name + " under " + to.name);
      for (const nn::Parameter& p : engine->parameters())
        test::expect_equal(p.value.detach().clone(),
                           test::local_part(whole.at("model." + p.name), p.spec, engine->mesh().coordinates())
                               .to(p.value.scalar_type()),
                           p.name + " under " + to.name);
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Layouts, Checkpoints,
                         testing::Combine(testing::ValuesIn(layouts()), testing::Values("fp32", "bf16")),
                         [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param); });

// Saving and resuming continues exactly: later losses are bitwise equal, with loss scale, amax histories and moments.
TEST(Resume, ContinuesBitwiseInEveryFormat) {
  for (const std::string precision : {"fp32", "bf16", "fp16", "fp8"}) {
    run::Config config = config_of({.zero = 3, .data = 2, .precision = precision});
    if (precision == "fp8") config.precision.fp8.scaling = "delayed";
    if (precision == "fp16") config.precision.loss_scale = std::pow(2.0, 26);  // a few overflows
    const std::string folder = test::empty_folder("resume" + precision);
    comm::run_ranks(2, [&](comm::World& world) {
      const auto engine = initialize(world, config, test::tiny_gpt2());
      for (int64_t step = 0; step < 10; ++step) test::train_step(*engine, step, kText);
      test::save(*engine, folder);
      const auto resumed = initialize(world, config, test::tiny_gpt2());
      test::load(*resumed, folder);
      for (int64_t step = 10; step < 14; ++step)
        EXPECT_EQ(test::train_step(*resumed, step, kText), test::train_step(*engine, step, kText))
            << precision << " step " << step;
    });
  }
}

// ---------------------------------------------------------------------------------------------------- messages and
// sizes

TEST(ZeroConfig, RefusesConflictingKeys) {
  const auto message = [](const auto& change) {
    run::Config c = config_of({.data = 4});
    c.training.batch_size = 16;
    change(c);
    return test::thrown_message([&] { c.validate(); });
  };
  EXPECT_NE(message([](run::Config& c) {
              c.precision.mode = "fp16", c.precision.masters = false;
            }).find("[precision] mode fp16 needs master weights"),
            std::string::npos);
  EXPECT_NE(message([](run::Config& c) {
              c.parallel.zero = 3, c.parallel.zero_group = 3;
            }).find("[parallel] zero_group must divide data * sequence.size: got 3 of 4 replicas"),
            std::string::npos);
  EXPECT_NE(message([](run::Config& c) {
              c.parallel.zero = 2, c.parallel.max_gathered_mib = 64;
            }).find("[parallel] max_gathered_mib needs zero = 3 with reshard_after_forward"),
            std::string::npos);
}

TEST(Zero3, HoldsAtMostTwoUnitsAndTheNext) {
  for (const char* recompute : {"none", "block"})
    comm::run_ranks(2, [&](comm::World& world) {
      run::Config config = config_of({.zero = 3, .data = 2});
      config.memory.recompute = recompute;
      models::ModelShape shape = test::tiny_llama();
      shape.layers = 8;
      const auto engine = initialize(world, config, shape);
      int64_t largest = 0, all = 0;
      for (const auto& chunk : engine->store().chunks())
        largest = std::max(largest, chunk->bytes()), all += chunk->bytes();
      ASSERT_GT(all, 6 * largest);
      for (int64_t step = 0; step < 3; ++step) test::train_step(*engine, 0, kText);
      EXPECT_LE(engine->store().counts().peak_gathered, 3 * largest) << recompute;
      EXPECT_EQ(engine->store().counts().gathered, 0);
    });
}

// Two micro-batches per step: resident chunks are gathered once per step, others up to four times.
TEST(Zero3, GathersLessWithMoreResidentParameters) {
  struct Outcome {
    std::vector<at::Tensor> weights;
    int64_t gathers = 0, peak = 0;
  };
  constexpr int64_t kSteps = 3;
  int64_t chunks = 0, largest = 0, all = 0;
  const auto outcome_of = [&](int64_t bytes, bool reshards) {
    Outcome outcome;
    comm::run_ranks(2, [&](comm::World& world) {
      run::Config config = config_of({.zero = 3, .data = 2});
      config.training.accumulate = 2;
      config.parallel.max_gathered_mib = static_cast<double>(bytes) / (1 << 20);
      config.parallel.reshard_after_forward = reshards;
      models::ModelShape shape = test::tiny_llama();
      shape.layers = 8;
      const auto engine = initialize(world, config, shape);
      for (int64_t step = 0; step < kSteps; ++step) test::train_step(*engine, step, kText);
      if (world.rank() != 0) return;
      for (const auto& t : engine->weights()) outcome.weights.push_back(t.value.clone());
      outcome.gathers = engine->store().counts().gathers;
      outcome.peak = engine->store().counts().peak_gathered;
      EXPECT_EQ(engine->store().counts().gathered, 0) << "parameters have changed";
      chunks = static_cast<int64_t>(engine->store().chunks().size()), largest = all = 0;
      for (const auto& chunk : engine->store().chunks())
        largest = std::max(largest, chunk->bytes()), all += chunk->bytes();
    });
    return outcome;
  };
  const Outcome two = outcome_of(0, true), stays = outcome_of(0, false);
  EXPECT_EQ(stays.gathers, kSteps * chunks);
  EXPECT_EQ(stays.peak, all);
  int64_t before = two.gathers + 1;
  for (const int64_t bytes : {3 * largest, all / 2, 3 * all / 4, all}) {
    const Outcome some = outcome_of(bytes, true);
    EXPECT_LT(some.gathers, before) << bytes;
    EXPECT_LE(some.peak, bytes);
    ASSERT_EQ(some.weights.size(), two.weights.size());
    for (size_t i = 0; i < two.weights.size(); ++i)
      EXPECT_TRUE(at::equal(some.weights[i], two.weights[i])) << bytes << " bytes, tensor " << i;
    before = some.gathers;
  }
  EXPECT_EQ(before, stays.gathers);
}

}  // namespace
}  // namespace colossal::train::zero_modes_test
