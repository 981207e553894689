// Courses of whole runs, each with the data, the models and the step rule of its config.
//
//   const run::Config one = test::tiny_config("examples/sft.toml", {"--data.sequence=64"});
//   const std::vector<double> want = test::run_course(one, run::built_in());
#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "colossal/base/metric.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/engine.h"
#include "colossal/train/run_models.h"
#include "colossal/train/step_rule.h"
#include "support/paths.h"

namespace colossal::test {

/// Returns the flags of both lists. A flag of the second one overrides the same flag of the first one.
inline std::vector<std::string> joined(std::vector<std::string> first, const std::vector<std::string>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Returns the config of a file with a model of width 32 in fp64 and 8 samples per step, unless `flags` say
/// otherwise. A model of model.from has sizes of its own.
inline run::Config tiny_config_of(const std::string& path, const std::vector<std::string>& flags) {
  std::vector<std::string> all{
      "--run.device=cpu",           "--run.matmul=mkl",         "--training.steps=10", "--precision.mode=fp64",
      "--data.held_out=0.3",        "--training.batch_size=8",  "--parallel.data=1",   "--training.evaluate_batches=1",
      "--training.sample_tokens=0", "--parallel.chunk_mib=0.05"};
  const auto names_source = [](const std::string& flag) { return flag.starts_with("--model.from="); };
  if (std::none_of(flags.begin(), flags.end(), names_source))
    all = joined(all, {"--model.hidden=32", "--model.heads=4", "--model.kv_heads=4", "--model.ffn=32"});
  return run::read_given_config(path, joined(all, flags)).config;
}

/// Returns tiny_config_of() an example.
inline run::Config tiny_config(const std::string& example, const std::vector<std::string>& flags) {
  return tiny_config_of(source_dir() + "/" + example, flags);
}

/// Makes the first steps of a run on all ranks of its layout, and evaluates a held-out batch if the run has some.
/// Returns rank 0's values: loss, gradient norm and further metrics of each step, then sums and weight of the
/// evaluation. `at_end` gets the engine of each rank.
inline std::vector<double> run_course(const run::Config& config, const run::Program& program, int64_t steps = 3,
                                      const std::function<void(train::Engine&)>& at_end = {}) {
  std::vector<double> values;
  comm::run_ranks(static_cast<int>(config.parallel.ranks()), [&](comm::World& world) {
    config.validate();
    run::RunData data =
        run::open_data(config, program, "", static_cast<int>(config.parallel.replica_of(world.rank())), at::kCPU);
    const train::RunModels models = train::models_of(config, data);
    const auto engine = train::initialize(world, config, models, at::kCPU);
    const auto rule = models.make_rule(*engine);
    std::vector<double> own;
    data.training->want(engine->tokens_read());
    for (int64_t step = 0; step < steps; ++step) {
      const train::StepOutcome outcome = rule->step(*engine, [&] { return data.training->next(); });
      own.insert(own.end(), {outcome.loss, outcome.result.gradient_norm});
      for (const Metric& row : outcome.rows) own.push_back(number_of(row));
    }
    if (data.held_out) {
      data.held_out->want(engine->tokens_read());
      const train::Evaluation held_out = engine->evaluate(rule->with_fields(*engine, data.held_out->next()));
      own.insert(own.end(), held_out.sums.begin(), held_out.sums.end());
      own.push_back(held_out.weight);
    }
    if (at_end) at_end(*engine);
    if (world.rank() == 0) values = own;
  });
  return values;
}

}  // namespace colossal::test
