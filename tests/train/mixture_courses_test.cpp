// Fifty steps of mixtures of experts over `parallel.expert` and each other part of a layout: losses and gradient norms
// equal those of one process that has the same number of micro-batches. The norm counts each expert once.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/tiers/tiered_store.h"
#include "colossal/schedule/make.h"
#include "colossal/train/engine.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"
#include "train/mixtures.h"

namespace colossal::train::mixture_courses_test {
namespace {

constexpr int64_t kSteps = 50;
constexpr double kLimit = 1e-10;  // of the value; rounding alone stays far below it in fp64

run::Config serial_config(int64_t micro_batches) {
  run::Config c = test::course_config();
  c.training.accumulate = micro_batches;
  c.training.steps = kSteps;
  c.training.clip = 0.5;
  c.optimizer.learning_rate = 0.01;
  c.optimizer.warmup_steps = 2;
  // Adam divides a gradient by its own size, so with a small epsilon rounding of tiny gradients would be a whole step.
  c.optimizer.epsilon = 1e-3;
  return c;
}

using Numbers = std::vector<std::pair<double, double>>;  // loss and gradient norm of each step

Numbers course_of(Engine& engine) {
  Numbers numbers;
  for (int64_t step = 0; step < kSteps; ++step) {
    engine.zero_grad();
    const double loss = engine.train_step(test::own_batch(engine, step, kMixtureText));
    numbers.emplace_back(loss, engine.step().gradient_norm);
  }
  return numbers;
}

/// Returns the course of one process. Each is computed once.
const Numbers& serial(int64_t layers, int64_t micro_batches) {
  static std::map<std::pair<int64_t, int64_t>, Numbers> known;
  Numbers& numbers = known[{layers, micro_batches}];
  if (numbers.empty())
    comm::run_ranks(1, [&](comm::World& world) {
      numbers = course_of(*initialize(world, serial_config(micro_batches), mixture(layers)));
    });
  return numbers;
}

void expect_near(const Numbers& got, const Numbers& want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].first, want[i].first, kLimit * want[i].first) << what << ": loss of step " << i;
    EXPECT_NEAR(got[i].second, want[i].second, kLimit * want[i].second) << what << ": gradient norm of step " << i;
  }
}

/// Trains `config` on its ranks and compares every rank. `check` gets each rank's engine at the end.
void expect_course(const run::Config& config, int64_t layers, const std::string& what,
                   const std::function<void(Engine&)>& check = {}) {
  const Numbers& want = serial(layers, config.micro_batches());
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, mixture(layers));
    expect_near(course_of(*engine), want, concat(what, ", rank ", world.rank()));
    if (check) check(*engine);
  });
}

run::Config over_experts(int64_t micro_batches = 2) {
  run::Config config = serial_config(micro_batches);
  config.parallel.expert.size = 2;
  return config;
}

TEST(MixtureCourses, EqualOneProcessInEveryZeroStageAndRecomputation) {
  for (const int64_t zero : {0, 1, 2, 3})
    for (const char* recompute : {"none", "selective", "block"}) {
      if (zero % 2 == 1 && recompute == std::string("none")) continue;  // the next test has these
      run::Config config = over_experts();
      config.parallel.zero = zero;
      config.memory.recompute = recompute;
      expect_course(config, 2, concat("zero ", zero, ", recompute ", recompute));
    }
}

TEST(MixtureCourses, EqualOneProcessBesideEveryAxis) {
  for (const int64_t zero : {0, 1, 3}) {
    run::Config config = over_experts();
    config.parallel.data = 2;
    config.parallel.zero = zero;
    expect_course(config, 2, concat("data 2, zero ", zero));
  }
  for (const parallel::SequenceConfig& sequence : test::sequence_modes()) {
    run::Config config = over_experts();
    config.parallel.sequence = sequence;
    expect_course(config, 2, "sequence " + sequence.mode);
  }
}

TEST(MixtureCourses, EqualOneProcessInEveryTensorMode) {
  for (const parallel::TensorConfig& tensor : mixture_tensor_modes()) {
    run::Config config = over_experts(1);
    config.parallel.tensor = tensor;
    expect_course(config, 2, test::name_of(tensor));
  }
  run::Config split = over_experts(1);
  split.parallel.tensor.size = 2;
  split.parallel.expert.tensor = "split";
  expect_course(split, 2, "split");
}

TEST(MixtureCourses, EqualOneProcessInEverySchedule) {
  for (const schedule::Family& family : schedule::families()) {
    run::Config config = over_experts(1);
    config.parallel.pipeline = {.size = 2, .schedule = family.name, .micro_batches = 4};
    expect_course(config, 4, family.name);
  }
}

// The smallest host budget that a run accepts holds neither all weights nor all states.
TEST(MixtureCourses, EqualOneProcessOnDisk) {
  test::TemporaryFolder folder;
  run::Config config = over_experts();
  config.memory.disk = folder.path();
  config.memory.host = 4096;
  int64_t least = 0;
  comm::run_ranks(2, [&](comm::World& world) {
    const std::string message = test::thrown_message([&] { initialize(world, config, mixture(2)); });
    const size_t begin = message.find("works is \"") + 10;
    ASSERT_GT(begin, 10U) << message;
    if (world.rank() == 0) least = parse_bytes(message.substr(begin, message.find('"', begin) - begin)).value_or(0);
  });
  ASSERT_GT(least, 4096);
  config.memory.host = least;
  expect_course(config, 2, "tiers", [&](Engine& engine) {
    const memory::TieredStore::Counts counts = engine.tiers()->counts();
    EXPECT_GT(counts.bytes_written, 0);
    EXPECT_GT(counts.bytes_read, 0);
    EXPECT_LE(counts.peak_host_bytes, least / 2);
  });
}

}  // namespace
}  // namespace colossal::train::mixture_courses_test
