// Short courses of a model with adapters, and their comparison with the course of one process.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/nn/low_rank.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"

namespace colossal::train {

/// The course of one process: its losses, and its whole state after the first step, which has the gradients in its
/// moments.
struct AdapterCourse {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> states;
};

/// Trains for two steps on all ranks and returns their losses. `see` gets the engine of each rank after each step, of
/// one rank at a time.
inline std::vector<double> adapter_losses(const run::Config& config, const NamedModel& model, const test::Text& text,
                                          const std::function<void(Engine&, int64_t step)>& see) {
  std::vector<double> losses;
  std::mutex mutex;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    const auto engine = initialize(world, config, model);
    for (int64_t step = 0; step < 2; ++step) {
      const double loss = test::train_step(*engine, step, text);
      if (world.rank() == 0) losses.push_back(loss);
      const std::lock_guard lock(mutex);
      see(*engine, step);
    }
  });
  return losses;
}

/// Returns the course of a config of one rank. Every adapter must train.
inline AdapterCourse adapter_course(const run::Config& config, const NamedModel& model, const test::Text& text) {
  AdapterCourse course;
  course.losses = adapter_losses(config, model, text, [&](Engine& engine, int64_t step) {
    for (const checkpoint::NamedTensor& t : engine.state().tensors)
      if (step == 0) test::put_part(course.states[t.name], t);
    for (const nn::Parameter& p : engine.parameters())
      if (step == 1 && nn::is_low_rank(p.name)) EXPECT_GT(p.value.abs().max().item<double>(), 0) << p.name << " trains";
  });
  return course;
}

/// Expects the losses under a layout, and the state of each rank after the first step, to be those of `want` to 1e-10.
inline void expect_adapter_course(const run::Config& config, const NamedModel& model, const test::Text& text,
                                  const AdapterCourse& want, const std::string& what) {
  const std::vector<double> losses = adapter_losses(config, model, text, [&](Engine& engine, int64_t step) {
    if (step > 0) return;
    for (const checkpoint::NamedTensor& t : engine.state().tensors) {
      const at::Tensor whole = test::local_part(want.states.at(t.name), t, engine.mesh().coordinates());
      EXPECT_LE((t.value.clone() - whole).abs().max().item<double>(), 1e-10) << what << ": " << t.name;
    }
  });
  ASSERT_EQ(losses.size(), want.losses.size()) << what;
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], want.losses[i], 1e-10) << what << ", step " << i;
}

}  // namespace colossal::train
