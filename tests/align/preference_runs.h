// Runs of preference training, of a tiny model over bytes.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "colossal/align/rows.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/report/metrics.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/trainer.h"
#include "support/preference_lines.h"
#include "support/run_courses.h"
#include "support/temporary_folder.h"

namespace colossal::align {

class PreferenceRuns : public testing::Test {
 protected:
  void SetUp() override { test::write_preferences(folder_.path()); }

  /// A short run of DPO in the folder `name`, in fp64 on one rank, unless `flags` say otherwise.
  run::Config config(const std::string& name, const std::vector<std::string>& flags = {}) const {
    const std::vector<std::string> own{"--run.folder=" + (folder_ / name), "--optimizer.warmup_steps=0",
                                       "--optimizer.learning_rate=0.005", "--training.steps=4",
                                       "--training.evaluate_every=4"};
    return test::tiny_config("examples/sft.toml",
                             test::joined(test::joined(test::preference_flags(folder_.path(), "dpo"), own), flags));
  }
  /// Adds the flags of KTO and its lines.
  std::vector<std::string> kto(const std::vector<std::string>& flags = {}) const {
    return test::joined(flags, test::preference_flags(folder_.path(), "kto"));
  }
  static run::Program program() { return with_alignment(run::built_in()); }

  /// Trains a run and returns the parameters of rank 0.
  static std::map<std::string, at::Tensor> train(const run::Config& c, train::Start start = train::Start::Overwrite,
                                                 int64_t stop_after = 0, const run::Program& known = program()) {
    std::map<std::string, at::Tensor> parameters;
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      train::TrainerOptions options{.start = start, .program = known};
      options.stop_requested = [&] { return stop_after > 0 && ++steps >= stop_after; };
      train::Trainer trainer(world, c, options);
      trainer.run();
      // Ranks that share parameters read them together.
      for (const nn::Parameter& p : trainer.engine().parameters()) {
        const at::Tensor value = p.value.detach().clone();
        if (world.rank() == 0) parameters[p.name] = value;
      }
    });
    return parameters;
  }
  /// Returns a metric of all steps of a run that have it.
  static std::vector<double> metric(const run::Config& c, const std::string& name) {
    std::vector<double> values;
    for (const double value : report::read_metrics(c.run.folder + "/metrics.jsonl").values(name, -1e300))
      if (value > -1e300) values.push_back(value);
    return values;
  }
  /// Trains a model on the chosen answers, a little, and returns its run folder.
  std::string base(const std::string& name = "base", const std::vector<std::string>& flags = {}) const {
    std::string chats;
    for (int i = 0; i < 40; ++i)
      chats += concat(R"({"prompt": "Add )", i, R"(: ", "completion": "It is )", i, ".\"}\n");
    write_file(folder_ / "chats.jsonl", chats);
    const std::vector<std::string> own{"--alignment.method=sft", "--data.packing=false",
                                       "--data.path=" + (folder_ / "chats.jsonl"), "--training.steps=3"};
    const run::Config c = config(name, test::joined(own, flags));
    train(c);
    return c.run.folder;
  }

  test::TemporaryFolder folder_;
};

}  // namespace colossal::align
