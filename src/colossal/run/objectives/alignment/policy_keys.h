// The keys of [alignment] that methods with rollouts have: GRPO, RLOO, REINFORCE++, PPO. This header needs no LibTorch.
//
//   AlignmentKeys keys{.method = "grpo"};
//   keys.policy.preset = "dapo";
//   const PolicyKeys all = completed(keys, {.max_tokens = 20});     // clip_high is 0.28, overlong is 4
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::run {

struct AlignmentKeys;
struct RolloutKeys;

/// A number whose default depends on the method or the preset.
inline constexpr double kOfMethod = -1;

/// The keys of [alignment] that shape the loss of a policy. "auto", -1 and 0 epochs stand for the value of the preset
/// or the method (completed()).
struct PolicyKeys {
  std::string preset = "none";
  double kl = kOfMethod;
  std::string kl_estimator = "auto";
  double clip_low = kOfMethod, clip_high = kOfMethod, dual_clip = 0;
  std::string mean = "auto", divide_by_spread = "auto", baseline = "batch", ratio = "auto";
  int64_t epochs = 0, mini_batches = 1;
  double entropy = 0, weight_cap = 2;
  std::string dynamic = "auto";
  int64_t max_waves = 10;
  int64_t overlong = -1;
  double gamma = 1, lambda = 0.95, value_clip = 0.2, kl_target = 0, kl_horizon = 0, ptx = 0;
  void fields(Fields& f);
  bool operator==(const PolicyKeys&) const = default;

  /// Returns the number of updates of a step, if the keys are completed.
  int64_t updates() const { return epochs * mini_batches; }
};

/// Returns true for a method that draws answers: grpo, rloo, reinforce++, ppo.
bool draws_answers(const std::string& method);

/// Returns the keys with the values of the preset and, for those that it does not set, of the method in place of
/// "auto", -1 and 0 epochs. `notices` gets a line with the keys that a preset sets; null = none.
/// `loss` becomes "clip" or "cispo". Errors ("alignment"): a method that draws no answers.
AlignmentKeys completed(const AlignmentKeys& keys, const RolloutKeys& rollout,
                        std::vector<std::string>* notices = nullptr);

/// Checks the keys of a method that draws answers. Errors ("alignment", "rollout"): values out of range, keys without
/// effect on the method, answers = 1 for a method that compares answers, a temperature of 0, no max_tokens.
void check_policy_keys(const AlignmentKeys& keys, const RolloutKeys& rollout);

}  // namespace colossal::run
