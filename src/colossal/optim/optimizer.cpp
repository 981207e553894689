#include "colossal/optim/optimizer.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/optim/adafactor.h"
#include "colossal/optim/adam.h"
#include "colossal/optim/adam8bit.h"
#include "colossal/optim/came.h"
#include "colossal/optim/galore.h"
#include "colossal/optim/lamb.h"
#include "colossal/optim/lars.h"
#include "colossal/optim/least_state.h"
#include "colossal/optim/lion.h"
#include "colossal/optim/sgd.h"
#include "colossal/optim/unused_keys.h"

namespace colossal::optim {
namespace {

using Made = std::unique_ptr<Optimizer>;
using Shards = std::vector<memory::Shard>;

struct Row {
  const char* name;
  Made (*make)(const OptimizerConfig&, Shards&, comm::Mesh&);
  std::vector<double> betas;      ///< unless the config says others; none: it has none
  std::vector<std::string> keys;  ///< of OptimizerConfig that it uses beside betas and those that all use
  double least_states = 0;        ///< values, as wide as those it updates, that it keeps for each element of a large matrix at least
};

template <class Rule>
Made alone(const OptimizerConfig& config, Shards& shards, comm::Mesh&) {
  return std::make_unique<Rule>(config, shards);
}
template <class Rule>
Made together(const OptimizerConfig& config, Shards& shards, comm::Mesh& mesh) {
  return std::make_unique<Rule>(config, shards, mesh);
}
template <Adam::Decay decay>
Made adam(const OptimizerConfig& config, Shards& shards, comm::Mesh&) {
  return std::make_unique<Adam>(config, shards, decay);
}

const std::vector<Row>& registry() {
  static const std::vector<Row> rows{
      {"adamw", adam<Adam::Decay::Decoupled>, {0.9, 0.95}, {"epsilon", "stochastic_rounding"}, 2},
      {"adam", adam<Adam::Decay::Penalty>, {0.9, 0.95}, {"epsilon", "stochastic_rounding"}, 2},
      {"sgd", alone<Sgd>, {}, {"momentum", "nesterov", "stochastic_rounding"}},
      {"lion", alone<Lion>, {0.9, 0.99}, {"stochastic_rounding"}, 1},
      {"lamb", together<Lamb>, {0.9, 0.999}, {"epsilon"}, 2},
      {"lars", together<Lars>, {}, {"momentum", "trust", "stochastic_rounding"}},
      {"adafactor", together<Adafactor>, {}, {}},
      {"came", together<Came>, {0.9, 0.999, 0.9999}, {}},
      {"adam8bit", alone<Adam8bit>, {0.9, 0.95}, {"epsilon"}},
      {"galore", together<Galore>, {0.9, 0.95}, {"epsilon", "rank", "update_every", "projection_scale"}},
  };
  return rows;
}

const std::vector<std::string>& common_keys() {
  static const std::vector<std::string> keys{"name",         "learning_rate",       "weight_decay",          "schedule",
                                             "warmup_steps", "final_learning_rate", "learning_rate_scaling", "reference_batch"};
  return keys;
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const Row& row : registry()) names.push_back(row.name);
  return names;
}

const Row& row_of(const OptimizerConfig& config) {
  for (const Row& row : registry())
    if (config.name == row.name) return row;
  std::string known;
  for (const std::string& name : rule_names()) known += (known.empty() ? "" : ", ") + name;
  throw Error("optimizer", concat("unknown optimizer ", config.name, "; there are ", known));
}

}  // namespace

void OptimizerConfig::fields(Fields& f) {
  f.choice("name", name, rule_names(), "update rule");
  f.number("learning_rate", learning_rate, "", "peak learning rate", 0, 1e3);
  f.numbers("betas", betas, "",
            "decay of the moments; empty: 0.9, 0.95 of adamw, adam, adam8bit, galore; 0.9, 0.99 of lion; 0.9, 0.999 of lamb; 0.9, 0.999, 0.9999 of came", 0,
            0.999999);
  f.number("epsilon", epsilon, "", "adamw, adam, lamb, adam8bit, galore: added to the root of the second moment", 1e-30, 1);
  f.number("weight_decay", weight_decay, "", "of matrices and embeddings, never of norms and biases; decoupled but for sgd, adam, lars", 0, 10);
  f.number("momentum", momentum, "", "sgd, lars: share of the last direction that is kept", 0, 0.999999);
  f.flag("nesterov", nesterov, "sgd: look ahead along the momentum");
  f.number("trust", trust, "", "lars: size of a step as a share of the tensor's norm", 1e-9, 10);
  f.integer("rank", rank, "", "galore: of projected gradients", 1, 1 << 20);
  f.integer("update_every", update_every, "steps", "galore: between computations of what gradients are projected to", 1);
  f.number("projection_scale", projection_scale, "", "galore: factor of projected steps", 0, 1e3);
  f.flag("stochastic_rounding", stochastic_rounding, "sgd, adam, adamw, lion, lars: round bf16 parameters that have no fp32 masters by chance");
  f.integer("warmup_steps", warmup_steps, "steps", "linear warm-up from 0 to where the schedule begins");
  f.number("final_learning_rate", final_learning_rate, "of learning_rate",
           "where linear, cosine, polynomial, one-cycle and warmup-stable-decay end", 0, 1);
  f.choice("learning_rate_scaling", learning_rate_scaling, {"none", "linear", "square-root"},
           "how learning_rate, found for reference_batch, grows with training.batch_size");
  f.integer("reference_batch", reference_batch, "samples", "batch_size that learning_rate was found for; 0: no scaling");
  f.section("schedule", schedule, "the learning rate after the warm-up", "name");
  f.section("groups", groups, "parameters with a learning rate or weight decay of their own", "");
}

double least_state_bytes(const OptimizerConfig& config, double value_bytes) { return row_of(config).least_states * value_bytes; }

StateTensor state_of_piece(const std::string& kind, const at::Tensor& flat, const memory::Piece& piece) {
  return {concat(kind, ".", piece.parameter->name), of_piece(flat, piece), piece.parameter->spec, piece.part};
}

void check_optimizer(const OptimizerConfig& config) {
  const Row& row = row_of(config);
  std::vector<std::string> keys = row.keys;
  if (!row.betas.empty()) keys.push_back("betas");
  refuse_unused_keys(config.name, describe_config(config), describe_config(OptimizerConfig()), common_keys(), keys);
  require(config.betas.empty() || config.betas.size() == row.betas.size(), "optimizer", config.name, " has ", row.betas.size(), " betas: got ",
          config.betas.size());
  config.groups.check();
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& given, std::vector<memory::Shard>& shards, comm::Mesh& mesh) {
  check_optimizer(given);
  for (const memory::Shard& shard : shards)
    require(!given.stochastic_rounding || shard.values.scalar_type() == at::kBFloat16, "optimizer",
            "stochastic_rounding is for bf16 parameters without masters: got ", shard.values.scalar_type(), "; leave it out");
  OptimizerConfig config = given;
  if (config.betas.empty()) config.betas = row_of(config).betas;
  return row_of(config).make(config, shards, mesh);
}

}  // namespace colossal::optim
