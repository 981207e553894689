#include "colossal/run/objectives/alignment/rollout_keys.h"

namespace colossal::run {

void RolloutKeys::fields(Fields& f) {
  constexpr int64_t kMost = int64_t{1} << 30;
  f.integer("prompts", prompts, "prompts", "prompts of a step, over all replicas; divisible by them", 1, kMost);
  f.integer("answers", answers, "answers", "answers to each prompt; methods that compare them need at least 2", 1,
            kMost);
  f.integer("max_tokens", max_tokens, "tokens", "maximum number of new tokens of an answer; required", 0, kMost);
  f.number("temperature", temperature, "",
           "temperature of the draws, above 0, and of all log-probabilities. Filters such as top-k would change the "
           "distribution that is drawn from, so there are none",
           0);
  f.choice("truncated", truncated, {"keep", "mask"},
           "answers that reach max_tokens: keep = they are trained, mask = the loss leaves them out");
  f.bytes("cache", cache, "keys and values of drawing per rank, which exist while answers are drawn", 1);
  f.choice(
      "panels", panels, {"auto", "true", "false"},
      "draw with packed copies of the weights, the only second copy; auto = true, but false with tiers of [memory] "
      "and on accelerators. Without them drawing multiplies with the parameters");
  f.choice("canonical", canonical, {"auto", "true", "false"},
           "compute updates with the operations of drawing, so that both have the same log-probabilities to the bit; "
           "auto = wherever that is possible. Elsewhere a pass computes the log-probabilities before the first update");
  f.integer("ahead", ahead, "steps",
            "draw answers so many steps before they are trained, so that the run need not wait for slow rewards", 0,
            1024);
  f.integer("keep_steps", keep_steps, "steps", "number of steps whose answers are kept in the run folder; 0 = all");
}

}  // namespace colossal::run
