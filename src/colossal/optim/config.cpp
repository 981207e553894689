#include "colossal/optim/config.h"

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/optim/unused_keys.h"

namespace colossal::optim {
namespace {

struct Rule {
  const char* name;
  std::vector<double> betas;      ///< default betas; empty = the rule has none
  std::vector<std::string> keys;  ///< keys of OptimizerConfig that it uses, in addition to betas and to common_keys()
  /// Minimum number of state values per element of a large matrix, each as wide as the updated values.
  double min_states = 0;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> rows{
      {"adamw", {0.9, 0.95}, {"epsilon", "stochastic_rounding"}, 2},
      {"adam", {0.9, 0.95}, {"epsilon", "stochastic_rounding"}, 2},
      {"sgd", {}, {"momentum", "nesterov", "stochastic_rounding"}},
      {"lion", {0.9, 0.99}, {"stochastic_rounding"}, 1},
      {"lamb", {0.9, 0.999}, {"epsilon"}, 2},
      {"lars", {}, {"momentum", "trust", "stochastic_rounding"}},
      {"adafactor", {}, {}},
      {"came", {0.9, 0.999, 0.9999}, {}},
      {"adam8bit", {0.9, 0.95}, {"epsilon"}},
      {"galore", {0.9, 0.95}, {"epsilon", "rank", "update_every", "projection_scale"}},
      {"muon", {0.95, 0.9, 0.95}, {"epsilon", "step_scale"}, 1},
  };
  return rows;
}

const std::vector<std::string>& common_keys() {
  static const std::vector<std::string> keys{
      "name",         "learning_rate",       "weight_decay",          "schedule",
      "warmup_steps", "final_learning_rate", "learning_rate_scaling", "reference_batch"};
  return keys;
}

const Rule& rule_of(const OptimizerConfig& config) {
  for (const Rule& rule : rules())
    if (config.name == rule.name) return rule;
  throw Error("optimizer", concat("unknown optimizer ", config.name, "; use one of ", join(rule_names())));
}

}  // namespace

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const Rule& rule : rules()) names.push_back(rule.name);
  return names;
}

double min_state_bytes(const OptimizerConfig& config, double value_bytes) {
  return rule_of(config).min_states * value_bytes;
}

std::vector<double> betas_of(const OptimizerConfig& config) {
  return config.betas.empty() ? rule_of(config).betas : config.betas;
}

void OptimizerConfig::fields(Fields& f) {
  f.choice("name", name, rule_names(), "update rule");
  f.number("learning_rate", learning_rate, "", "peak learning rate", 0, 1e3);
  f.numbers("betas", betas, "",
            "decay rates of the moments; empty = 0.9, 0.95 for adamw, adam, adam8bit, galore; 0.9, 0.99 for lion; 0.9, "
            "0.999 for lamb; 0.9, 0.999, 0.9999 for came; for muon 0.95 (matrices), then 0.9, 0.95 (its AdamW)",
            0, 0.999999);
  f.number("epsilon", epsilon, "",
           "adamw, adam, lamb, adam8bit, galore, muon: constant added to the root of the second moment", 1e-30, 1);
  f.number("weight_decay", weight_decay, "",
           "weight decay of matrices and embeddings, not of norms and biases; decoupled except for sgd, adam, lars", 0,
           10);
  f.number("momentum", momentum, "", "sgd, lars: fraction of the previous direction that is kept", 0, 0.999999);
  f.flag("nesterov", nesterov, "sgd: use Nesterov momentum");
  f.number("trust", trust, "", "lars: trust coefficient, the size of a step as a fraction of the tensor's norm", 1e-9,
           10);
  f.integer("rank", rank, "", "galore: rank of the gradient projection", 1, 1 << 20);
  f.integer("update_every", update_every, "steps", "galore: interval between computations of the projection", 1);
  f.number("projection_scale", projection_scale, "", "galore: scale factor of projected steps", 0, 1e3);
  f.choice("step_scale", step_scale, {"adamw", "spectral"},
           "muon: size of a matrix's step: adamw = 0.2 sqrt(max(rows, columns)), as large as AdamW's; spectral = "
           "sqrt(max(1, rows / columns))");
  f.flag("stochastic_rounding", stochastic_rounding,
         "sgd, adam, adamw, lion, lars: stochastic rounding of bf16 parameters without fp32 master weights");
  f.integer("warmup_steps", warmup_steps, "steps",
            "length of the linear warm-up from 0 to the first rate of the schedule; 0 = none");
  f.number("final_learning_rate", final_learning_rate, "fraction of learning_rate",
           "last rate of linear, cosine, polynomial, one-cycle and warmup-stable-decay", 0, 1);
  f.choice("learning_rate_scaling", learning_rate_scaling, {"none", "linear", "square-root"},
           "rule that scales learning_rate from reference_batch to training.batch_size");
  f.integer("reference_batch", reference_batch, "samples",
            "batch size for which learning_rate was tuned; 0 = no scaling");
  f.section("schedule", schedule, "learning-rate schedule after the warm-up", "name");
  f.section("groups", groups, "groups of parameters with separate learning rates or weight decays", "");
}

void check_optimizer(const OptimizerConfig& config) {
  const Rule& rule = rule_of(config);
  std::vector<std::string> keys = rule.keys;
  if (!rule.betas.empty()) keys.push_back("betas");
  refuse_unused_keys(config.name, describe_config(config), describe_config(OptimizerConfig()), common_keys(), keys);
  require(config.betas.empty() || config.betas.size() == rule.betas.size(), "optimizer", "betas must have ",
          rule.betas.size(), " values for ", config.name, ": got ", config.betas.size());
  config.groups.check();
}

}  // namespace colossal::optim
