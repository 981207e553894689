// Short runs of tiny models under every way to share out.
#pragma once
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::train {

struct Layout {
  std::string name;
  int64_t zero = 0, data = 1, sharers = 0, tensor = 1, pipeline = 1;
  std::string precision = "fp32", optimizer = "adamw";
  int ranks() const { return static_cast<int>(data * tensor * pipeline); }
};

inline run::Config config_of(const Layout& layout) {
  run::Config c;
  c.precision.mode = layout.precision;
  c.optimizer.name = layout.optimizer;
  c.optimizer.warmup_steps = 0;
  c.parallel.data = layout.data;
  c.parallel.zero = layout.zero;
  c.parallel.zero_sharers = layout.sharers;
  c.parallel.tensor.size = layout.tensor;
  c.parallel.pipeline.size = layout.pipeline;
  c.parallel.chunk_mib = 0.01;  // several chunks
  c.training = {.steps = 50, .batch_size = 12, .seed = 1};
  return c;
}

/// Rows of the 12 that are batch `step`: those of part `part`.
inline data::Batch batch_of(int64_t step, int64_t part, int64_t parts) {
  auto generator = at::detail::createCPUGenerator(step);
  const auto ids = at::TensorOptions().dtype(at::kLong);
  const at::Tensor tokens = at::randint(0, 37, {12, 7}, generator, ids).narrow(0, part * (12 / parts), 12 / parts);
  const at::Tensor positions = at::arange(6, ids).expand({12 / parts, 6}).contiguous();
  return {tokens.narrow(1, 0, 6), tokens.narrow(1, 1, 6), positions, at::Tensor()};
}

inline double train_step(Engine& engine, int64_t step) {
  engine.zero_grad();
  const double loss = engine.train_step(batch_of(step, engine.mesh().index("data"), engine.mesh().size("data")));
  engine.step();
  return loss;
}

/// Losses of `steps` steps on all ranks of a layout, and what rank 0 updates after the last; `batches`: after so many
/// they come again.
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
      const double loss = train_step(*engine, step % batches);
      if (world.rank() == 0) result.losses.push_back(loss);
    }
    if (world.rank() != 0) return;
    for (const auto& t : engine->weights()) result.weights.push_back({t.name, t.value.clone(), t.spec, t.part});
  });
  return result;
}

}  // namespace colossal::train
