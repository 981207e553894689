// Training with tokens split over ranks: the loss curve of one process, and checkpoints that move between layouts.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::train::sequence_modes_test {
namespace {

using Parallel = distributed::ParallelConfig;

run::Config config_of(const Parallel& parallel) {
  run::Config c = test::course_config();
  const double chunk = c.parallel.chunk_mib;
  c.parallel = parallel;
  c.parallel.chunk_mib = chunk;
  c.optimizer.epsilon = 1e-3;  // a gradient that is zero except for rounding must not become a whole step
  return c;
}

/// Runs body(engine) on every rank.
template <class Body>
void on_ranks(const Parallel& parallel, const Body& body) {
  comm::run_ranks(static_cast<int>(parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config_of(parallel), test::tiny_gpt2());
    body(world, *engine);
  });
}

std::vector<double> losses(const Parallel& parallel) {
  std::vector<double> out;
  on_ranks(parallel, [&](comm::World& world, Engine& engine) {
    for (int64_t step = 0; step < 50; ++step) {
      const double loss = test::train_step(engine, step % 5);
      if (world.rank() == 0) out.push_back(loss);
    }
  });
  return out;
}

// Six tokens per row; usp in two pairs. Each mode is combined with every other kind of parallelism.
TEST(SequenceModes, EqualOneProcessForFiftySteps) {
  const std::vector<double> want = losses({});
  EXPECT_LT(want.back(), want.front());
  for (const parallel::SequenceConfig& sequence : test::sequence_modes())
    for (const Parallel& layout :
         {Parallel{.data = 2, .sequence = sequence, .zero = 3}, Parallel{.sequence = sequence, .tensor = {.size = 2}},
          Parallel{.sequence = sequence, .pipeline = {.size = 2, .micro_batches = 2}}}) {
      const std::vector<double> got = losses(layout);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 1e-10 * want[i])
            << sequence.mode << ", data " << layout.data << ", tensor " << layout.tensor.size << ", step " << i + 1;
    }
}

// A checkpoint saved after two steps is loaded under other layouts. Weights and optimizer states are equal bitwise, and
// the next loss equals one process's.
TEST(SequenceCheckpoints, LoadUnderEveryLayout) {
  const Parallel ring{.data = 2, .sequence = {2, "ring"}, .zero = 3};
  const std::string folder = test::empty_folder("ring");
  on_ranks(ring, [&](comm::World&, Engine& engine) {
    test::train(engine, 0, 2);
    test::save(engine, folder);
  });
  std::map<std::string, at::Tensor> whole;
  double next = 0;
  const auto load = [&](const Parallel& layout, const auto& see) {
    on_ranks(layout, [&](comm::World&, Engine& engine) {
      test::load(engine, folder);
      for (const auto& t : engine.state().tensors) see(t, engine.mesh().coordinates());
      const double loss = test::train_step(engine, 2);
      if (layout.ranks() == 1) next = loss;
      EXPECT_NEAR(loss, next, 1e-12 * next);
    });
  };
  load({}, [&](const checkpoint::NamedTensor& t, const tensor::MeshCoordinates&) { test::put_part(whole[t.name], t); });
  EXPECT_GT(whole.size(), 3 * 20u);  // parameters and both moments
  for (const Parallel& layout :
       {ring, Parallel{.sequence = {3, "gather"}}, Parallel{.tensor = {.size = 2}},
        Parallel{.sequence = {4, "usp", 2}, .zero = 1}, Parallel{.sequence = {2, "ulysses"}, .tensor = {.size = 2}},
        Parallel{.sequence = {3, "ring-self-attention"}, .pipeline = {.size = 2}, .zero = 2}})
    load(layout, [&](const checkpoint::NamedTensor& t, const tensor::MeshCoordinates& coordinates) {
      test::expect_equal(t.value.clone(), test::local_part(whole.at(t.name), t, coordinates), t.name);
    });
}

}  // namespace
}  // namespace colossal::train::sequence_modes_test
