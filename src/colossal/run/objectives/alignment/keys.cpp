#include "colossal/run/objectives/alignment/keys.h"

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/run/unused_keys.h"

namespace colossal::run {

void AlignmentKeys::fields(Fields& f) {
  f.choice(
      "method", method, {"sft", "dpo", "ipo", "kto", "simpo", "orpo", "reward", "ppo", "grpo", "rloo", "reinforce++"},
      "what the run learns from: sft = the answers of chats (supervised fine-tuning); dpo, ipo, simpo, orpo = which of "
      "two answers is better; kto = which answers are desirable; reward = scores of texts, from pairs and rankings of "
      "answers (a reward model); ppo, grpo, rloo, reinforce++ = scores of the model's own answers to prompts");
  f.number("noise", noise, "",
           "sft: NEFTune's alpha: training adds uniform noise of at most alpha / sqrt(tokens of the text x hidden) to "
           "embeddings; 0 = none",
           0);
  f.number("beta", beta, "",
           "methods of preferences: strength with which the reference holds the policy (dpo, ipo, kto), scale of the "
           "rewards (simpo), weight of the odds (orpo); 0 = the method's: 2 for simpo, 0.1 for others",
           0);
  f.choice(
      "loss", loss, {"auto", "sigmoid", "robust", "hinge", "mean", "sum", "clip", "cispo"},
      "dpo: sigmoid, robust or hinge; ipo: mean over the tokens of an answer, or sum; methods with rollouts: clip, "
      "or cispo, whose ratio is capped and has no gradient; auto = the first of these, or that of the preset");
  f.number("smoothing", smoothing, "of the pairs",
           "dpo with the losses sigmoid (which becomes cDPO) and robust: share of pairs whose order is wrong", 0,
           0.499);
  f.number("nll", nll, "", "dpo: weight of the chosen answer's mean negative log-likelihood", 0);
  f.number("margin", margin, "", "simpo: difference of rewards that is asked for, gamma of the paper", 0);
  f.number("desirable_weight", desirable_weight, "", "kto: weight of desirable answers", 0);
  f.number("undesirable_weight", undesirable_weight, "", "kto: weight of undesirable answers", 0);
  f.number("centre", centre, "", "reward: weight of (sum of both scores)^2 of a pair, which keeps scores around 0", 0);
  f.integer("answers", answers, "", "reward: most answers of a ranking; a row has room for so many texts", 2, 64);
  policy.fields(f);
}

namespace {

/// Refuses keys of methods that draw answers.
void check_no_policy_keys(const AlignmentKeys& k) {
  const std::vector<KeyHelp> keys = describe_config(k.policy);
  std::vector<KeyNeed> needs;
  needs.reserve(keys.size());
  for (const KeyHelp& key : keys)
    needs.push_back({key.key.c_str(), false, "alignment.method ppo, grpo, rloo or reinforce++"});
  refuse_unused_keys("alignment", keys, describe_config(PolicyKeys()), needs);
}

}  // namespace

void check_method_keys(const AlignmentKeys& k) {
  const bool draws = draws_answers(k.method);
  if (!draws) check_no_policy_keys(k);
  const bool is_dpo = k.method == "dpo", is_ipo = k.method == "ipo", is_kto = k.method == "kto",
             is_reward = k.method == "reward";
  refuse_unused_keys(
      "alignment", describe_config(k), describe_config(AlignmentKeys()),
      {
          {"noise", k.method == "sft", "alignment.method sft"},
          {"beta", k.method != "sft" && !is_reward && !draws, "alignment.method dpo, ipo, kto, simpo or orpo"},
          {"loss", is_dpo || is_ipo || draws, "alignment.method dpo or ipo, or one that draws answers"},
          {"smoothing", is_dpo && k.loss != "hinge", "alignment.method dpo with another loss than hinge"},
          {"nll", is_dpo, "alignment.method dpo"},
          {"margin", k.method == "simpo", "alignment.method simpo"},
          {"desirable_weight", is_kto, "alignment.method kto"},
          {"undesirable_weight", is_kto, "alignment.method kto"},
          {"centre", is_reward, "alignment.method reward"},
          {"answers", is_reward, "alignment.method reward"},
      });
  if (draws) return;
  const bool is_of_ipo = k.loss == "mean" || k.loss == "sum";
  require(k.loss == "auto" || is_of_ipo == is_ipo, "alignment", "loss must be ",
          is_ipo ? "mean or sum" : "sigmoid, robust or hinge", " with alignment.method = \"", k.method, "\": got ",
          k.loss);
  require(
      k.loss != "robust" || k.smoothing > 0, "alignment",
      "smoothing must be above 0 with alignment.loss = \"robust\", which otherwise equals the loss sigmoid: got 0; set "
      "alignment.smoothing to the share of pairs whose order is wrong");
}

}  // namespace colossal::run
