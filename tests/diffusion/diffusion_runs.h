// Runs that learn to draw: a tiny DiT on drawn shapes of 8 pixels, in fp64.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/rows.h"
#include "colossal/report/metrics.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/trainer.h"
#include "support/run_courses.h"
#include "support/temporary_folder.h"

namespace colossal::diffusion {

class DiffusionRuns : public testing::Test {
 protected:
  /// A short run in the folder `name`.
  run::Config config(const std::string& name, const std::vector<std::string>& flags = {}) const {
    const std::vector<std::string> own{"--run.folder=" + (folder_ / name),
                                       "--model.height=8",
                                       "--model.width=8",
                                       "--model.hidden=16",
                                       "--model.ffn=32",
                                       "--model.layers=2",
                                       "--data.path=builtin-shapes:80",
                                       "--data.held_out=0.2",
                                       "--optimizer.warmup_steps=0",
                                       "--training.steps=3",
                                       "--training.ema=0",
                                       "--training.sample_every=0",
                                       "--training.sample_tokens=200",  // 0 = no samples
                                       "--training.evaluate_every=3"};
    return test::tiny_config("examples/dit_shapes.toml", test::joined(own, flags));
  }
  static run::Program program() { return with_diffusion(run::built_in()); }

  /// Trains a run, and calls `after` on each rank.
  static void train(const run::Config& c, train::Start start = train::Start::Overwrite, int64_t stop_after = 0,
                    const std::function<void(train::Trainer&, int rank)>& after = {}) {
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      train::TrainerOptions options{.start = start, .program = program()};
      options.stop_requested = [&] { return stop_after > 0 && ++steps >= stop_after; };
      train::Trainer trainer(world, c, options);
      trainer.run();
      if (after) after(trainer, world.rank());
    });
  }
  /// Returns a metric of all steps of a run that have it.
  static std::vector<double> metric(const run::Config& c, const std::string& name) {
    std::vector<double> values;
    for (const double value : report::read_metrics(c.run.folder + "/metrics.jsonl").values(name, -1e300))
      if (value > -1e300) values.push_back(value);
    return values;
  }
  /// Trains a run and returns the values of these metrics, one metric after the other.
  static std::vector<double> course_of(const run::Config& c, const std::vector<std::string>& names) {
    train(c);
    std::vector<double> numbers;
    for (const std::string& name : names)
      for (const double value : metric(c, name)) numbers.push_back(value);
    return numbers;
  }

  test::TemporaryFolder folder_;
};

}  // namespace colossal::diffusion
