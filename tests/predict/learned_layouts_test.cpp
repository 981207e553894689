// Every layout that a search can return learns what the given one learns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/families/llama.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/forward_context.h"
#include "colossal/predict/layouts.h"
#include "colossal/predict/search.h"
#include "colossal/run/learned_parts.h"
#include "support/course.h"
#include "support/parity.h"

namespace colossal::predict::learned_layouts_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr test::Text kText{.vocabulary = 37};

models::ModelShape mixture(const models::ExpertKeys& keys) {
  models::ModelShape shape = test::tiny_llama();
  shape.own = models::LlamaSizes{.experts = keys};
  shape.set(models::MixtureSizes{keys.count});
  return shape;
}

models::ExpertKeys keys_of_course() {
  return {.count = 4, .used = 2, .ffn = 12, .capacity = 1, .balance_loss = 0.5, .z_loss = 0.1};
}

/// As test::course_config(), whose batches have 8 rows of 6 tokens.
run::Config course() {
  run::Config config = test::course_config();
  config.run.device = "cpu";
  config.data.sequence = 6;
  config.training.steps = 4;
  config.optimizer.warmup_steps = 1;
  config.optimizer.learning_rate = 0.01;
  return config;
}

std::vector<double> losses_of(const run::Config& config, const models::ModelShape& shape) {
  std::vector<double> losses;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = train::initialize(world, config, shape);
    const std::vector<double> mine = test::train(*engine, 0, 3, kText);
    if (world.rank() == 0) losses = mine;
  });
  return losses;
}

/// The layouts of the space that the model and the config allow.
std::vector<run::Config> layouts_of(const LayoutSpace& space) {
  std::vector<run::Config> layouts;
  space.for_each([&](const Layout& layout) {
    run::Config config = space.config_of(layout);
    try {
      config.validate();
      layouts.push_back(std::move(config));
    } catch (const Error&) {
      return;
    }
  });
  return layouts;
}

/// Sums over ranks differ in their order alone: losses of fp64 agree up to 1e-9, as in MixtureOptimizers.
void expect_same_losses(const run::Config& given, const models::ModelShape& shape, const LayoutLimits& limits,
                        size_t every) {
  const std::vector<double> want = losses_of(given, shape);
  const std::vector<run::Config> layouts = layouts_of(LayoutSpace({given, shape}, limits));
  size_t compared = 0;
  for (size_t i = 0; i < layouts.size(); i += every) {
    std::vector<double> got;
    try {
      got = losses_of(layouts[i], shape);
    } catch (const Error&) {
      continue;  // only the model finds that it cannot be divided so
    }
    ++compared;
    for (size_t step = 0; step < want.size(); ++step)
      ASSERT_NEAR(got[step], want[step], 1e-9 * want[step]) << "step " << step << "\n" << to_toml(layouts[i].parallel);
  }
  EXPECT_GT(compared, 10u);
}

/// Recomputation and chunks of schedules are kept, because they multiply the layouts and their parity has tests of its
/// own.
TEST(LearnedLayouts, LearnTheSameForAMixture) {
  run::Config given = course();
  given.training.accumulate = 2;
  expect_same_losses(given, mixture(keys_of_course()),
                     {.ranks = 2, .ranks_per_node = 2, .keep = {"memory.recompute", "parallel.pipeline.chunks"}}, 1);
}

TEST(LearnedLayouts, LearnTheSameForADenseModel) {
  models::ModelShape shape = test::tiny_llama();
  shape.dropout = 0.1;
  expect_same_losses(course(), shape, {.ranks = 2, .ranks_per_node = 2}, 29);  // a sample of several hundred
}

/// Losses of micro-batches differ, or the test above would not see it.
TEST(LearnedLayouts, DifferInMicroBatchesOfAMixture) {
  run::Config one = course(), two = course();
  two.training.accumulate = 2;
  models::ExpertKeys keys = keys_of_course();
  keys.capacity = 0, keys.z_loss = 0;
  const auto differ = [&] {
    return std::abs(losses_of(one, mixture(keys)).back() - losses_of(two, mixture(keys)).back()) > 1e-7;
  };
  EXPECT_TRUE(differ()) << "by the balance loss";
  keys.balance_loss = 0, keys.capacity = 1;
  EXPECT_TRUE(differ()) << "by the capacity";
  keys.capacity = 0, keys.z_loss = 0.5;
  EXPECT_FALSE(differ()) << "the z-loss is a mean over tokens";
}

std::string change_of(const run::Config& a, const run::Config& b, const models::ModelShape& shape) {
  const run::LearnedParts learned(a.parallel, shape, *train::ConfiguredRun{a, shape}.objective());
  return run::learned_change(learned.of(a.parallel, a.micro_batches()), learned.of(b.parallel, b.micro_batches()));
}

TEST(LearnedParts, NameWhatMustStay) {
  run::Config one = course(), other = course();
  other.training.accumulate = 2;
  EXPECT_EQ(change_of(one, other, mixture(keys_of_course())),
            "micro-batches must stay 1, because model.experts.capacity and model.experts.balance_loss count the "
            "tokens of a micro-batch: got 2");
  models::ExpertKeys keys = keys_of_course();
  keys.balance_loss = 0, keys.capacity = 2;  // as many as there are tokens
  EXPECT_EQ(change_of(one, other, mixture(keys)), "");
  EXPECT_EQ(change_of(one, other, test::tiny_llama()), "");
  keys.balance_loss = 0.1, keys.balance_over = "rank";
  other = one;
  other.parallel.data = 2;
  EXPECT_THAT(change_of(one, other, mixture(keys)), HasSubstr("routing ranks must stay 1, because"));
  keys.balance_over = "batch";
  EXPECT_EQ(change_of(one, other, mixture(keys)), "");
  one.parallel.compress = other.parallel.compress = "fp8";
  EXPECT_THAT(change_of(one, other, test::tiny_llama()),
              HasSubstr("replicas must stay 1, because parallel.compress rounds what replicas send: got 2 with"));
  one.parallel.compress = other.parallel.compress = "none";
  one.parallel.expert.compress = other.parallel.expert.compress = "fp8";
  other.parallel.expert.size = 2;
  EXPECT_THAT(change_of(one, other, mixture(keys)), HasSubstr("expert ranks must stay 1, because"));
  EXPECT_EQ(change_of(one, other, test::tiny_llama()), "") << "a dense model sends no tokens";
}

/// An objective that compares the samples of a micro-batch.
class Comparison : public run::Objective {
 public:
  explicit Comparison(std::shared_ptr<const run::Objective> inner) : inner_(std::move(inner)) {}
  run::OpenedData open(const run::DataRequest& request) const override { return inner_->open(request); }
  tensor::Batch example(int64_t rows) const override { return inner_->example(rows); }
  void check(const tensor::Batch& batch) const override { inner_->check(batch); }
  double weight(const tensor::Batch& batch) const override { return inner_->weight(batch); }
  at::Tensor loss(const models::Model& model, const models::States& end,
                  const nn::ForwardContext& step) const override {
    return inner_->loss(model, end, step);
  }
  bool compares_samples() const override { return true; }

 private:
  std::shared_ptr<const run::Objective> inner_;
};

TEST(LearnedLayouts, KeepTheMicroBatchesOfAnObjective) {
  const models::ModelShape shape = test::tiny_llama();
  run::Config given = course();
  given.training.accumulate = 4;
  const auto objective = std::make_shared<Comparison>(train::ConfiguredRun{given, shape}.objective());
  const LayoutSpace space({given, train::NamedModel{.shape = shape, .objective = objective}},
                          {.ranks = 2, .ranks_per_node = 2});
  const std::vector<run::Config> layouts = layouts_of(space);
  ASSERT_THAT(layouts, Not(IsEmpty()));
  for (const run::Config& layout : layouts) EXPECT_EQ(layout.micro_batches(), 4);
  EXPECT_THAT(run::describe(space.learned()),
              ElementsAre("micro-batches stay 4, because the objective compares the samples of a micro-batch"));
  EXPECT_THAT(space.refusals().at("training"), HasSubstr("micro-batches must stay 4"));
}

TEST(LearnedLayouts, KeepReplicasThatCompress) {
  run::Config given = course();
  given.parallel.data = 2;
  given.parallel.zero = 1;
  given.parallel.compress = "fp8";
  const auto layouts = layouts_of(LayoutSpace({given, test::tiny_llama()}, {.ranks = 4, .ranks_per_node = 4}));
  ASSERT_THAT(layouts, Not(IsEmpty()));
  for (const run::Config& layout : layouts) {
    EXPECT_EQ(layout.parallel.copies(), 2);
    EXPECT_EQ(layout.parallel.zero, 1);
  }
}

TEST(LearnedLayouts, KeepTheBudgets) {
  run::Config given = course();
  given.memory.device = 1 << 20;
  given.memory.host = 1 << 26;
  const auto layouts = layouts_of(LayoutSpace({given, test::tiny_llama()}, {.ranks = 2, .ranks_per_node = 2}));
  ASSERT_THAT(layouts, Not(IsEmpty()));
  for (const run::Config& layout : layouts) {
    EXPECT_EQ(layout.memory.device, given.memory.device);
    EXPECT_EQ(layout.memory.host, given.memory.host);
    EXPECT_TRUE(layout.parallel.zero == 0 || layout.parallel.zero == 3);
  }
}

}  // namespace
}  // namespace colossal::predict::learned_layouts_test
