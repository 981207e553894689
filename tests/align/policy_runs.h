// Runs that learn from scores of their own answers: a tiny model over bytes that starts at random, so about a quarter
// of its answers have a letter from a to m.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "align/preference_runs.h"
#include "colossal/align/rollouts/records.h"

namespace colossal::align {

class PolicyRuns : public PreferenceRuns {
 protected:
  void SetUp() override {
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      const int digit = i * 7 % 10;
      lines += concat(R"({"prompt": "say )", digit, R"(:", "answer": ")", digit, R"(", "pattern": "[a-m]"})", "\n");
    }
    write_file(folder_ / "prompts.jsonl", lines);
  }

  /// A short run of `method` in the folder `name`, in fp32 on one rank, unless `flags` say otherwise.
  run::Config policy(const std::string& name, const std::vector<std::string>& flags = {},
                     const std::string& method = "grpo") const {
    const std::vector<std::string> own{"--run.folder=" + (folder_ / name),
                                       "--optimizer.warmup_steps=0",
                                       "--optimizer.learning_rate=0.005",
                                       "--training.steps=4",
                                       "--training.evaluate_batches=0",
                                       "--training.batch_size=16",
                                       "--alignment.method=" + method,
                                       "--data.path=" + (folder_ / "prompts.jsonl"),
                                       "--data.chat_template=",
                                       "--data.sequence=32",
                                       "--data.held_out=0",
                                       "--precision.mode=fp32",
                                       "--rollout.prompts=4",
                                       "--rollout.answers=4",
                                       "--rollout.max_tokens=6",
                                       "--reward.verifiers=regex,exact"};
    run::Config c = test::tiny_config("examples/sft.toml", test::joined(own, flags));
    run::complete_keys(c, program().objectives, run::tables_of(program().adapters));
    return c;
  }

  /// Returns the answers of all steps, as text.
  static std::string answers(const run::Config& c) {
    const std::string folder = c.run.folder + "/rollouts";
    std::string all;
    for (const int64_t step : rollout_steps(folder))
      for (const StoredGroup& group : read_rollouts(folder, step))
        for (const StoredAnswer& one : group.answers) {
          all += concat(step, "/", group.prompt.index, "/", one.answer.number, " ", one.answer.finish_reason, ":");
          for (const int64_t id : one.answer.ids) all += concat(" ", id);
          for (const double lp : one.answer.log_probabilities) all += concat(" ", std::bit_cast<uint64_t>(lp));
          all += concat(" = ", one.score ? one.score->value.value_or(-99) : -999, "\n");
        }
    return all;
  }
};

}  // namespace colossal::align
