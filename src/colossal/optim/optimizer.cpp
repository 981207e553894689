#include "colossal/optim/optimizer.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

struct Row {
  const char* name;  ///< name of a rule in config.cpp
  RuleMaker* make;
};

const Row kRows[] = {
    {"adamw", make_adamw},         {"adam", make_adam}, {"sgd", make_sgd},
    {"lion", make_lion},           {"lamb", make_lamb}, {"lars", make_lars},
    {"adafactor", make_adafactor}, {"came", make_came}, {"adam8bit", make_adam8bit},
    {"galore", make_galore},       {"muon", make_muon},
};

}  // namespace

StateTensor state_of_piece(const std::string& kind, tensor::Stored value, const memory::Piece& piece) {
  return {concat(kind, ".", piece.parameter->name), std::move(value), piece.parameter->spec, piece.part,
          piece.parameter->trained_rows()};
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
