// Steps on shapes alone and on values, whose calls are recorded.
#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "colossal/comm/decorators/recording.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/train/engine.h"
#include "support/parity.h"

namespace colossal::train {

/// A run of several steps.
struct RecordedCourse {
  using Calls = std::vector<comm::RecordedCall>;

  models::ModelShape shape;
  run::Config config;
  int64_t sequence = 8;

  int ranks() const { return static_cast<int>(config.parallel.ranks()); }
  std::unique_ptr<Engine> engine(comm::World& world, std::optional<at::Device> device) const {
    return initialize(world, config, shape, device);
  }
  void step(Engine& engine) const {
    engine.zero_grad();
    engine.train_step(test::batch_of_ones(shape, config.training.batch_size / config.parallel.data, sequence));
    engine.step();
  }
  /// Records the calls of two steps and an evaluation, in order. In the second step the gather order is known.
  Calls calls(comm::World& world, std::optional<at::Device> device) const {
    comm::RecordingWorld recording(world);
    const auto engine = this->engine(recording, device);
    for (int i = 0; i < 2; ++i) step(*engine);
    engine->evaluate(test::batch_of_ones(shape, config.training.batch_size / config.parallel.data, sequence));
    return recording.calls();
  }
  Calls recorded(int rank) const { return calls(*comm::make_simulated_world(rank, ranks()), at::kMeta); }
  std::vector<Calls> real() const {
    std::vector<Calls> all(ranks());
    std::mutex mutex;
    comm::run_ranks(ranks(), [&](comm::World& world) {
      Calls calls = this->calls(world, {});
      const std::lock_guard lock(mutex);
      all[world.rank()] = std::move(calls);
    });
    return all;
  }
};

/// Returns a layout whose parameters are in several chunks.
inline distributed::ParallelConfig parallel_of(int64_t data, const parallel::TensorConfig& tensor,
                                               const parallel::PipelineConfig& pipeline = {}, int64_t zero = 0) {
  distributed::ParallelConfig config;
  config.data = data;
  config.tensor = tensor;
  config.pipeline = pipeline;
  config.zero = zero;
  config.chunk_mib = 0.01;
  return config;
}

}  // namespace colossal::train
