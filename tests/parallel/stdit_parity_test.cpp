// STDiT3, whose blocks attend in space or in time and read the states of captions, under every layout against one
// process in fp64: losses, gradients, and weights after some steps. With collectives off each case must fail with a
// ParityError, or it proves nothing. COLOSSAL_ALL_LAYOUTS=1 runs products of layouts that a fast run leaves out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/models/registry.h"
#include "colossal/schedule/make.h"
#include "colossal/train/engine.h"
#include "support/noised_pictures.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::stdit_parity_test {
namespace {

using parallel::TensorConfig;
using testing::HasSubstr;

bool runs_all() { return std::getenv("COLOSSAL_ALL_LAYOUTS") != nullptr; }

ParityCase stdit_case() { return {.shape = tiny_stdit(), .batch = 2, .sequence = 18, .steps = runs_all() ? 10 : 1}; }

/// Returns the case with a tensor layout and the fewest rows, two or more, that it can divide.
ParityCase with_tensor(ParityCase c, const TensorConfig& tensor) {
  c.tensor = tensor;
  const int64_t parts = c.data * parallel::batch_parts(c.tensor) * (c.pipeline.size > 1 ? c.pipeline.micro_batches : 1);
  c.batch = std::max<int64_t>(2, parts);
  return c;
}

/// Returns layouts of whole features, with a rank that has padded heads, and of features that are split.
std::vector<TensorConfig> tensor_layouts() {
  if (!runs_all()) return {{.size = 3}, {.size = 4, .mode = "2d"}};
  std::vector<TensorConfig> modes = tensor_modes();
  std::erase_if(modes, [](const TensorConfig& t) { return t.sequence; });
  return modes;
}

TEST(Stdit, EqualsSingleProcessInEveryTensorMode) {
  for (const TensorConfig& tensor : tensor_layouts()) {
    SCOPED_TRACE(name_of(tensor));
    ParityCase c = with_tensor(stdit_case(), tensor);
    EXPECT_NO_THROW(check_parity(c));
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), ParityError);
  }
}

TEST(Stdit, EqualsSingleProcessWithReplicasThatShardParameters) {
  for (const int64_t zero : runs_all() ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{3}) {
    ParityCase c = stdit_case();
    c.data = 2;
    c.zero = zero;
    c.recompute = "block";
    EXPECT_NO_THROW(check_parity(with_tensor(c, {.size = 2}))) << zero;
  }
}

TEST(Stdit, EqualsSingleProcessUnderEverySchedule) {
  for (const schedule::Family& family : schedule::families()) {
    const std::string name = family.name;
    if (!runs_all() && name != "1f1b") continue;
    SCOPED_TRACE(name);
    ParityCase c = stdit_case();
    c.shape.layers = runs_all() ? 4 : 2;
    c.pipeline = {.size = 2, .schedule = name, .micro_batches = 2};
    EXPECT_NO_THROW(check_parity(with_tensor(c, {})));
  }
}

TEST(Stdit, EqualsSingleProcessInPipelinesOfOtherModes) {
  ParityCase c = stdit_case();
  c.pipeline = {.size = 2, .schedule = "zero-bubble-h1", .micro_batches = 2};
  c.recompute = "selective";
  EXPECT_NO_THROW(check_parity(with_tensor(c, {.size = 2})));
}

TEST(Stdit, FailsIfAStateIsLostBetweenStages) {
  ParityCase c = stdit_case();
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  for (const int transfer : {0, 1, 2, 3}) {  // the states of the first micro-batch
    c.lost_transfer = transfer;
    EXPECT_THROW(check_parity(c), ParityError) << transfer;
  }
}

TEST(Stdit, ChangesNoBitIfBlocksAreRecomputed) {
  for (const char* recompute : {"selective", "block"}) {
    ParityCase c = stdit_case();
    c.recompute = recompute;
    c.bitwise = true;
    check_parity(c);
  }
}

// Neither the 6 places nor the frames of the rows divide by every number of ranks.
TEST(Stdit, EqualsSingleProcessInEverySequenceMode) {
  struct Layout {
    const char* mode;
    int64_t ranks;
    int64_t tensor = 1;
  };
  std::vector<Layout> layouts{{"dsp", 2}, {"dsp", 4}, {"dsp", 2, 2}, {"ulysses", 2}, {"ring", 4}};
  if (runs_all()) layouts.insert(layouts.end(), {{"dsp", 3}, {"dsp", 5}, {"usp", 4}, {"gather", 3}, {"ring", 2, 2}});
  for (const auto& [mode, ranks, tensor] : layouts) {
    SCOPED_TRACE(concat(mode, " ", ranks, " x tensor ", tensor));
    ParityCase c = with_tensor(stdit_case(), {.size = tensor});
    c.sequences = {.size = ranks, .mode = mode, .ulysses = mode == std::string("usp") ? 2 : 1};
    EXPECT_NO_THROW(check_parity(c));
    c.collectives_off = true;
    c.steps = 1;
    EXPECT_THROW(check_parity(c), ParityError);
  }
}

TEST(Stdit, EqualsSingleProcessIfRanksSwitchAxesInPipelinesAndReplicas) {
  ParityCase c = stdit_case();
  c.sequences = {.size = 2, .mode = "dsp"};
  c.recompute = "block";
  c.data = 2;
  c.zero = 3;
  EXPECT_NO_THROW(check_parity(with_tensor(c, {})));
  c.data = 1;
  c.zero = 0;
  c.pipeline = {.size = 2, .schedule = "1f1b", .micro_batches = 2};
  EXPECT_NO_THROW(check_parity(with_tensor(c, {})));
}

// A pair of blocks, 6 frames of two rows, and 6 places. Nothing else moves by all_to_all.
TEST(Stdit, SwitchesTwiceAPairInEachPassAndAgainIfRecomputed) {
  constexpr int kRanks = 3;
  const models::ModelShape shape = tiny_stdit();
  for (const bool recomputes : {false, true}) {
    std::array<double, kRanks> forward{}, backward{};
    comm::run_ranks(kRanks, [&](comm::World& world) {
      run::Config config;
      config.precision.mode = "fp64";
      config.parallel.sequence = {.size = kRanks, .mode = "dsp"};
      config.memory.recompute = recomputes ? "block" : "none";
      config.training.batch_size = 2;
      const train::NamedModel model{.shape = shape, .objective = prediction_objective(shape)};
      const auto engine = train::initialize(world, config, model, at::kCPU);
      set_random_weights(*engine);
      world.traffic().reset();
      engine->train_step(noised_pictures(shape, 2, 0));
      const auto sent = [&](comm::Phase phase) {
        return world.traffic().total("sequence", "all_to_all", phase).elements;
      };
      forward[static_cast<size_t>(world.rank())] = sent(comm::Phase::Forward);
      backward[static_cast<size_t>(world.rank())] = sent(comm::Phase::Backward);
    });
    const double each = static_cast<double>((kRanks - 1) * 6 * 6 * shape.hidden) / kRanks;
    EXPECT_EQ(std::accumulate(forward.begin(), forward.end(), 0.), 2 * each);
    EXPECT_EQ(std::accumulate(backward.begin(), backward.end(), 0.), (recomputes ? 4 : 2) * each);
  }
}

TEST(Stdit, RefusesMoreRanksThanPlaces) {
  ParityCase c = stdit_case();
  c.sequences = {.size = 7, .mode = "dsp"};
  EXPECT_THAT(thrown_message([&] { check_parity(c); }),
              testing::AllOf(HasSubstr("places"), HasSubstr("6"), HasSubstr("7")));
}

}  // namespace
}  // namespace colossal::test::stdit_parity_test
