#include "colossal/run/objectives/alignment/policy_keys.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/number.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/rollout_keys.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {
namespace {

/// The defaults of a method.
struct MethodDefaults {
  const char* method;
  double kl;
  const char *kl_estimator, *mean;
  int64_t epochs;
};

constexpr MethodDefaults kDefaults[] = {
    {"grpo", 0, "k3", "sequence", 1},
    {"rloo", 0.05, "k1", "token", 1},
    {"reinforce++", 0.01, "k1", "token", 1},
    {"ppo", 0.05, "k1", "token", 4},
};

const MethodDefaults* defaults_of(const std::string& method) {
  const auto* row = std::find_if(std::begin(kDefaults), std::end(kDefaults),
                                 [&](const MethodDefaults& one) { return one.method == method; });
  return row == std::end(kDefaults) ? nullptr : row;
}

/// Sets a key to the value of a preset or method if the config does not give it.
class Unset {
 public:
  void number(const char* name, double& key, double value) {
    if (key == kOfMethod) set(name, key, value, print_number(value));
  }
  void integer(const char* name, int64_t& key, int64_t unset, int64_t value) {
    if (key == unset) set(name, key, value, concat(value));
  }
  void text(const char* name, std::string& key, const char* value) {
    if (key == "auto") set(name, key, std::string(value), concat("\"", value, "\""));
  }
  std::vector<std::string> set_keys{};  ///< "clip_high = 0.28"

 private:
  template <class Value>
  void set(const char* name, Value& key, Value value, const std::string& shown) {
    key = std::move(value);
    set_keys.push_back(concat(name, " = ", shown));
  }
};

/// A preset sets the keys of a paper.
void set_by_preset(AlignmentKeys& keys, const RolloutKeys& rollout, Unset& unset) {
  PolicyKeys& p = keys.policy;
  if (p.preset == "dapo") {
    unset.text("mean", p.mean, "token");
    unset.number("clip_low", p.clip_low, 0.2);
    unset.number("clip_high", p.clip_high, 0.28);
    unset.text("dynamic", p.dynamic, "true");
    unset.integer("overlong", p.overlong, -1, rollout.max_tokens / 5);
  } else if (p.preset == "dr-grpo") {
    unset.text("divide_by_spread", p.divide_by_spread, "false");
    unset.text("mean", p.mean, "constant");
  } else if (p.preset == "gspo") {
    unset.text("ratio", p.ratio, "sequence");
    unset.number("clip_low", p.clip_low, 3e-4);
    unset.number("clip_high", p.clip_high, 4e-4);
  } else if (p.preset == "cispo") {
    unset.text("loss", keys.loss, "cispo");
    unset.number("clip_high", p.clip_high, 0.28);
    unset.text("mean", p.mean, "token");
  }
}

void set_by_method(AlignmentKeys& keys, const MethodDefaults& defaults) {
  PolicyKeys& p = keys.policy;
  Unset unset;
  unset.number("kl", p.kl, defaults.kl);
  unset.text("kl_estimator", p.kl_estimator, defaults.kl_estimator);
  unset.number("clip_low", p.clip_low, 0.2);
  unset.number("clip_high", p.clip_high, 0.2);
  unset.text("mean", p.mean, defaults.mean);
  unset.text("divide_by_spread", p.divide_by_spread, "true");
  unset.text("ratio", p.ratio, "token");
  unset.text("loss", keys.loss, "clip");
  unset.text("dynamic", p.dynamic, "false");
  unset.integer("epochs", p.epochs, 0, defaults.epochs);
  unset.integer("overlong", p.overlong, -1, 0);
}

void check_number(const char* name, double value) {
  require(value >= 0 || value == kOfMethod, "alignment", name, " must be at least 0, or -1 for the method's own: got ",
          print_number(value));
}

void check_ranges(const AlignmentKeys& keys, const RolloutKeys& rollout) {
  const PolicyKeys& p = keys.policy;
  check_number("kl", p.kl);
  check_number("clip_low", p.clip_low);
  check_number("clip_high", p.clip_high);
  require(p.clip_low <= 1, "alignment", "clip_low must be at most 1, because a ratio is above 0: got ",
          print_number(p.clip_low));
  require(p.weight_cap > 0, "alignment", "weight_cap must be above 0, because a policy whose weights are 0 learns ",
          "nothing: got ", print_number(p.weight_cap));
  require(p.dual_clip == 0 || p.dual_clip > 1, "alignment", "dual_clip must be above 1, or 0 = off: got ",
          print_number(p.dual_clip));
  require(keys.loss == "auto" || keys.loss == "clip" || keys.loss == "cispo", "alignment",
          "loss must be auto, clip or cispo with alignment.method = \"", keys.method, "\": got ", keys.loss);
  require(rollout.max_tokens > 0, "rollout",
          "max_tokens must be given, the maximum number of new tokens of an answer: got none; set rollout.max_tokens");
  require(rollout.temperature > 0, "rollout", "temperature must be above 0, because answers are drawn: got ",
          print_number(rollout.temperature), "; set it to 1");
  require(p.overlong <= rollout.max_tokens, "alignment",
          "overlong must be at most rollout.max_tokens, over whose end the penalty grows: got ", p.overlong, " of ",
          rollout.max_tokens);
  require((p.kl_target > 0) == (p.kl_horizon > 0), "alignment",
          "kl_target and kl_horizon adapt kl together, and 0 = off: got ", print_number(p.kl_target), " and ",
          print_number(p.kl_horizon));
}

}  // namespace

bool draws_answers(const std::string& method) { return defaults_of(method) != nullptr; }

void PolicyKeys::fields(Fields& f) {
  f.choice("preset", preset, {"none", "dapo", "dr-grpo", "gspo", "cispo"},
           "grpo: sets keys that the config does not give as a paper does: dapo = mean token, clip 0.2 and 0.28, "
           "dynamic, overlong = max_tokens / 5; dr-grpo = no division by the spread, mean constant; gspo = ratio "
           "sequence, clip 3e-4 and 4e-4; cispo = loss cispo, clip_high 0.28, mean token");
  f.number("kl", kl, "",
           "methods with rollouts: weight of the KL divergence from the reference: in the loss of grpo, in the reward "
           "of others; 0 = no reference; -1 = the method's: grpo 0, rloo and ppo 0.05, reinforce++ 0.01",
           -1);
  f.choice("kl_estimator", kl_estimator, {"auto", "k1", "k2", "k3", "k3+"},
           "estimator of the KL of a token; auto = k3 for grpo, k1 for others; k3+ has the gradient of k2");
  f.number("clip_low", clip_low, "", "range of the ratio below 1; -1 = 0.2, or that of the preset", -1, 1);
  f.number("clip_high", clip_high, "", "range of the ratio above 1; -1 = 0.2, or that of the preset", -1);
  f.number("dual_clip", dual_clip, "", "bound c of the loss for negative advantages, above 1; 0 = off", 0);
  f.choice("mean", mean, {"auto", "token", "sequence", "constant"},
           "mean of the loss over tokens, over the means of answers, or over answers x max_tokens; auto = sequence for "
           "grpo, token for others");
  f.choice("divide_by_spread", divide_by_spread, {"auto", "true", "false"},
           "grpo: divide the advantages of a group by its standard deviation; auto = true, unless the preset says "
           "otherwise");
  f.choice("baseline", baseline, {"batch", "group"},
           "reinforce++: batch = whitened returns of tokens; group = scores less the mean of their group, whitened");
  f.choice("ratio", ratio, {"auto", "token", "sequence"},
           "ratio of new to old probability of each token, or the mean over an answer (GSPO); auto = token");
  f.integer("epochs", epochs, "", "passes over the answers of a step; 0 = the method's: ppo 4, others 1", 0, 1 << 20);
  f.integer("mini_batches", mini_batches, "", "updates into which a pass over the answers is divided", 1, 1 << 20);
  f.number("entropy", entropy, "", "weight of the entropy, which keeps answers diverse", 0);
  f.number("weight_cap", weight_cap, "",
           "cap of the importance weights, where training and drawing compute other log-probabilities", 0);
  f.choice("dynamic", dynamic, {"auto", "true", "false"},
           "grpo, rloo: replace groups whose answers all have one score by those of further prompts");
  f.integer("max_waves", max_waves, "", "dynamic: most rounds of further prompts in a step", 1, 1 << 20);
  f.integer_or_off("overlong", overlong, "tokens",
                   "number of tokens before max_tokens over which a penalty of the score grows to -1; 0 = none; -1 = "
                   "that of the preset, else 0");
  f.number("gamma", gamma, "", "ppo and reinforce++: discount of later rewards", 0, 1);
  f.number("lambda", lambda, "", "ppo: weight of later advantages (GAE)", 0, 1);
  f.number("value_clip", value_clip, "", "ppo: range around the earlier value within which a value learns; 0 = off", 0);
  f.number("kl_target", kl_target, "nats", "ppo: KL of an answer to which kl adapts, with kl_horizon; 0 = kl is fixed",
           0);
  f.number("kl_horizon", kl_horizon, "answers", "ppo: number of answers over which kl adapts; 0 = kl is fixed", 0);
  f.number("ptx", ptx, "", "ppo: weight of the loss of the text of data.pretraining (PPO-ptx)", 0);
}

AlignmentKeys completed(const AlignmentKeys& keys, const RolloutKeys& rollout, std::vector<std::string>* notices) {
  const MethodDefaults* defaults = defaults_of(keys.method);
  require(defaults != nullptr, "alignment", "only methods that draw answers have these keys: got ", keys.method);
  AlignmentKeys all = keys;
  Unset unset;
  set_by_preset(all, rollout, unset);
  if (notices && !unset.set_keys.empty())
    notices->push_back(concat("alignment.preset = \"", keys.policy.preset, "\" sets ", join(unset.set_keys)));
  set_by_method(all, *defaults);
  return all;
}

void check_policy_keys(const AlignmentKeys& keys, const RolloutKeys& rollout) {
  check_ranges(keys, rollout);
  const PolicyKeys& p = keys.policy;
  const std::string& method = keys.method;
  const bool is_grpo = method == "grpo", is_ppo = method == "ppo", has_groups = is_grpo || method == "rloo",
             is_reinforce = method == "reinforce++", is_dynamic = completed(keys, rollout).policy.dynamic == "true",
             compares = has_groups || (is_reinforce && p.baseline == "group");
  const bool has_kl = completed(keys, rollout).policy.kl > 0, clips = completed(keys, rollout).loss == "clip",
             discounts = is_ppo || (is_reinforce && p.baseline == "batch");
  refuse_unused_keys("alignment", describe_config(p), describe_config(PolicyKeys()),
                     {{"preset", is_grpo, "alignment.method grpo"},
                      {"divide_by_spread", is_grpo, "alignment.method grpo"},
                      {"baseline", is_reinforce, "alignment.method reinforce++"},
                      {"dynamic", has_groups, "alignment.method grpo or rloo"},
                      {"max_waves", is_dynamic, "alignment.dynamic = true"},
                      {"kl_estimator", has_kl, "alignment.kl above 0"},
                      {"clip_low", clips, "alignment.loss clip"},
                      {"dual_clip", clips, "alignment.loss clip"},
                      {"gamma", discounts, "alignment.method ppo, or reinforce++ with alignment.baseline batch"},
                      {"lambda", is_ppo, "alignment.method ppo"},
                      {"value_clip", is_ppo, "alignment.method ppo"},
                      {"kl_target", is_ppo && has_kl, "alignment.method ppo with alignment.kl above 0"},
                      {"kl_horizon", is_ppo && has_kl, "alignment.method ppo with alignment.kl above 0"},
                      {"ptx", is_ppo, "alignment.method ppo"}});
  require(!compares || rollout.answers >= 2, "rollout", "answers must be at least 2 with alignment.method = \"", method,
          "\", which compares the answers to a prompt: got ", rollout.answers);
}

}  // namespace colossal::run
