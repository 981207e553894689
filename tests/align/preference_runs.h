// Runs of preference training, of a tiny model over bytes.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "colossal/align/rows.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/report/metrics.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/step_rule.h"
#include "colossal/train/trainer.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace colossal::align {

class PreferenceRuns : public testing::Test {
 protected:
  void SetUp() override {
    std::string pairs, rated;
    for (int i = 0; i < kLines; ++i) {
      const std::string prompt = concat("Add ", i * 37 % 101, ": "),
                        good = concat("It is ", i % 3 == 0 ? "so " : "", i);
      pairs += concat(R"({"prompt": ")", prompt, R"(", "chosen": ")", good, R"(.", "rejected": ")",
                      i % 4 == 1 ? "I do not know" : "no", "\"}\n");
      rated += concat(R"({"prompt": ")", prompt, R"(", "completion": ")", good, R"(.", "label": )",
                      i % 3 == 0 ? "false" : "true", "}\n");
    }
    write_file(folder_ / "pairs.jsonl", pairs);
    write_file(folder_ / "rated.jsonl", rated);
  }

  /// A short run in the folder `name`, in fp64 on one rank, unless `flags` say otherwise.
  run::Config config(const std::string& name, const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> all{"--run.folder=" + (folder_ / name),
                                 "--run.device=cpu",
                                 "--run.matmul=mkl",
                                 "--precision.mode=fp64",
                                 "--alignment.method=dpo",
                                 "--data.chat_template=",
                                 "--data.path=" + (folder_ / "pairs.jsonl"),
                                 "--data.tokenizer=bytes",
                                 "--data.sequence=32",
                                 "--data.held_out=0.3",
                                 "--optimizer.warmup_steps=0",
                                 "--optimizer.learning_rate=0.005",
                                 "--training.batch_size=8",
                                 "--training.steps=4",
                                 "--training.evaluate_every=4",
                                 "--training.evaluate_batches=1",
                                 "--training.sample_tokens=0",
                                 "--parallel.chunk_mib=0.05"};
    all.insert(all.end(), flags.begin(), flags.end());
    const auto names_source = [](const std::string& flag) { return flag.starts_with("--model.from="); };
    if (std::none_of(flags.begin(), flags.end(), names_source))  // a folder has its sizes
      all.insert(all.begin(), {"--model.name=llama-tiny", "--model.hidden=32", "--model.layers=4", "--model.heads=4",
                               "--model.kv_heads=4", "--model.ffn=32"});
    return run::read_given_config(test::source_dir() + "/examples/sft.toml", all).config;
  }
  std::vector<std::string> kto(std::vector<std::string> flags = {}) const {
    flags.insert(flags.end(), {"--alignment.method=kto", "--data.path=" + (folder_ / "rated.jsonl")});
    return flags;
  }
  static run::Program program() { return with_alignment(run::built_in()); }

  /// Trains a run and returns the parameters of rank 0.
  static std::map<std::string, at::Tensor> train(const run::Config& c, train::Start start = train::Start::Overwrite,
                                                 int64_t stop_after = 0) {
    std::map<std::string, at::Tensor> parameters;
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      train::TrainerOptions options{.start = start, .program = program()};
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
    for (int i = 0; i < kLines; ++i)
      chats += concat(R"({"prompt": "Add )", i, R"(: ", "completion": "It is )", i, ".\"}\n");
    write_file(folder_ / "chats.jsonl", chats);
    std::vector<std::string> all{"--alignment.method=sft", "--data.packing=false",
                                 "--data.path=" + (folder_ / "chats.jsonl"), "--training.steps=3"};
    all.insert(all.end(), flags.begin(), flags.end());
    const run::Config c = config(name, all);
    train(c);
    return c.run.folder;
  }

  static constexpr int kLines = 40;
  test::TemporaryFolder folder_;
};

}  // namespace colossal::align
