#include "colossal/optim/optimizer.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/optim/adafactor.h"
#include "colossal/optim/adam.h"
#include "colossal/optim/adam8bit.h"
#include "colossal/optim/came.h"
#include "colossal/optim/galore.h"
#include "colossal/optim/lamb.h"
#include "colossal/optim/lars.h"
#include "colossal/optim/lion.h"
#include "colossal/optim/muon.h"
#include "colossal/optim/sgd.h"

namespace colossal::optim {
namespace {

using Made = std::unique_ptr<Optimizer>;
using Shards = std::vector<memory::Shard>;

struct Row {
  const char* name;  ///< name of a rule in config.cpp
  Made (*make)(const OptimizerConfig&, Shards&, const LogicalTensors&);
};

template <class Rule>
Made alone(const OptimizerConfig& config, Shards& shards, const LogicalTensors&) {
  return std::make_unique<Rule>(config, shards);
}
template <class Rule>
Made together(const OptimizerConfig& config, Shards& shards, const LogicalTensors& tensors) {
  return std::make_unique<Rule>(config, shards, tensors);
}
template <Adam::Decay decay>
Made adam(const OptimizerConfig& config, Shards& shards, const LogicalTensors&) {
  return std::make_unique<Adam>(config, shards, decay);
}

const Row kRows[] = {
    {"adamw", adam<Adam::Decay::Decoupled>},
    {"adam", adam<Adam::Decay::Penalty>},
    {"sgd", alone<Sgd>},
    {"lion", alone<Lion>},
    {"lamb", together<Lamb>},
    {"lars", together<Lars>},
    {"adafactor", together<Adafactor>},
    {"came", together<Came>},
    {"adam8bit", alone<Adam8bit>},
    {"galore", together<Galore>},
    {"muon", together<Muon>},
};

}  // namespace

StateTensor state_of_piece(const std::string& kind, tensor::Stored value, const memory::Piece& piece) {
  return {concat(kind, ".", piece.parameter->name), std::move(value), piece.parameter->spec, piece.part};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& given, std::vector<memory::Shard>& shards,
                                          const LogicalTensors& tensors) {
  check_optimizer(given);
  for (const memory::Shard& shard : shards)
    require(!given.stochastic_rounding || shard.options().dtype() == at::kBFloat16, "optimizer",
            "stochastic_rounding needs bf16 parameters without fp32 master weights: got ",
            c10::typeMetaToScalarType(shard.options().dtype()), "; leave it out");
  OptimizerConfig config = given;
  config.betas = betas_of(given);
  for (const Row& row : kRows)
    if (config.name == row.name) return row.make(config, shards, tensors);
  throw Error("optimizer", concat(config.name, " has no rule"));
}

}  // namespace colossal::optim
