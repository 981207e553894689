#include "colossal/run/objectives/alignment/scorer_keys.h"

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {

void RewardKeys::fields(Fields& f) {
  f.texts("verifiers", verifiers,
          "verifiers of an answer: exact, number, strict, flexible, f1 and rouge compare it with the line's `answer`; "
          "regex searches the line's `pattern`; json checks the line's `schema`; tags = <think> and <answer>; length = "
          "at most the line's `max_tokens`; or those of the program");
  f.numbers("weights", weights, "", "weights of the verifiers in the score, one for each; empty = 1 for each", -1e30,
            1e30);
  f.texts("command", command,
          "program that scores answers, and its arguments, such as [\"python3\", \"score.py\"]; no shell reads them");
  f.integer("workers", workers, "processes", "processes that run reward.command, each with one answer at a time", 1,
            1024);
  f.number("timeout", timeout, "seconds",
           "time that reward.command may take for an answer; then its worker is killed and the answer is tried again",
           0.001, 1e6);
  f.integer("retries", retries, "", "further tries of an answer after a timeout of reward.command", 0, 1000);
  f.choice(
      "on_fault", on_fault, {"error", "null"},
      "faults of reward.command or of a function that scores: error = the run ends, and --resume continues it; null "
      "= the answer has no score");
  f.text("from", from, "reward model that scores answers: a run folder or a Hugging Face folder; empty = none");
  f.number("from_weight", from_weight, "", "weight of the reward model's score", -1e30, 1e30);
  f.text("name", name, "preset of a reward model, for `colossal plan` alone; empty = none");
}

void check_scorer_keys(const RewardKeys& k, bool has_function) {
  const bool has_command = !k.command.empty();
  refuse_unused_keys(kReward, describe_config(k), describe_config(RewardKeys()),
                     {{"weights", !k.verifiers.empty(), "reward.verifiers"},
                      {"workers", has_command, "reward.command"},
                      {"timeout", has_command, "reward.command"},
                      {"retries", has_command, "reward.command"},
                      {"on_fault", has_command || has_function, "reward.command or a function that scores"},
                      {"from_weight", k.has_model(), "reward.from"}});
  require(k.weights.empty() || k.weights.size() == k.verifiers.size(), kReward,
          "weights must have one number for each of reward.verifiers: got ", k.weights.size(), " for ",
          join(k.verifiers), "; add or remove numbers, or leave reward.weights out");
  require(k.from.empty() || k.name.empty(), kReward, "from and name exclude each other: got ", k.from, " and ", k.name,
          "; reward.name is for plans without a reward model's folder, so remove it");
  require(!k.verifiers.empty() || has_command || has_function || k.has_model(), kReward,
          "answers must get a score: got no verifier, command, function or model; set reward.verifiers, reward.command "
          "or reward.from, or give colossal.train a function as `reward`");
}

}  // namespace colossal::run
