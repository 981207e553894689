// Short runs of tiny models under every sharding.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"

namespace colossal::train {

struct Layout {
  std::string name;
  int64_t zero = 0, data = 1, sharers = 0, tensor = 1, pipeline = 1;
  std::string precision = "fp32", optimizer = "adamw";
  int ranks() const { return static_cast<int>(data * tensor * pipeline); }
};

/// The text of all runs; its rows also divide among three replicas.
inline constexpr test::Text kText{.rows = 12, .vocabulary = 37};

inline run::Config config_of(const Layout& layout) {
  run::Config c = test::course_config();
  c.precision.mode = layout.precision;
  c.optimizer.name = layout.optimizer;
  c.optimizer.warmup_steps = 0;
  c.parallel.data = layout.data;
  c.parallel.zero = layout.zero;
  c.parallel.zero_group = layout.sharers;
  c.parallel.tensor.size = layout.tensor;
  c.parallel.pipeline.size = layout.pipeline;
  c.training.batch_size = kText.rows;
  return c;
}

/// The losses of run() with `steps` steps on all ranks of a layout, and the elements that rank 0 updates after the last
/// one. The batches repeat after `batches` steps.
struct Course {
  std::vector<double> losses;
  std::vector<checkpoint::NamedTensor> weights;
};

inline Course run(const run::Config& config, int64_t steps, const models::ModelShape& shape = test::tiny_gpt2(),
                  int64_t batches = 1000) {
  Course result;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, shape);
    for (int64_t step = 0; step < steps; ++step) {
      const double loss = test::train_step(*engine, step % batches, kText);
      if (world.rank() == 0) result.losses.push_back(loss);
    }
    if (world.rank() != 0) return;
    for (const auto& t : engine->weights()) result.weights.push_back({t.name, t.value.clone(), t.spec, t.part});
  });
  return result;
}

/// Checks that two courses are equal, bitwise.
inline void expect_equal(const Course& got, const Course& want, const std::string& what) {
  EXPECT_EQ(got.losses, want.losses) << what;
  ASSERT_EQ(got.weights.size(), want.weights.size()) << what;
  for (size_t i = 0; i < got.weights.size(); ++i)
    EXPECT_TRUE(at::equal(got.weights[i].value.clone(), want.weights[i].value.clone()))
        << what << ": " << got.weights[i].name;
}

}  // namespace colossal::train
