#include "colossal/optim/optimizer.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/optim/adamw.h"
#include "colossal/optim/learning_rate.h"

namespace colossal::optim {
namespace {

struct Row {
  const char* name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig&, std::vector<memory::Shard>&, comm::Mesh&);
};

const std::vector<Row>& registry() {
  static const std::vector<Row> rows{
      {"adamw", [](const OptimizerConfig& c, std::vector<memory::Shard>& s, comm::Mesh&) -> std::unique_ptr<Optimizer> {
         return std::make_unique<AdamW>(c, s);
       }},
  };
  return rows;
}

}  // namespace

void OptimizerConfig::fields(Fields& f) {
  std::vector<std::string> names;
  for (const Row& row : registry()) names.push_back(row.name);
  f.choice("name", name, names, "update rule");
  f.number("learning_rate", learning_rate, "", "peak learning rate", 0, 1e3);
  f.numbers("betas", betas, "", "decay of the first and second moment", 0, 0.999999);
  f.number("epsilon", epsilon, "", "added to the root of the second moment", 1e-30, 1);
  f.number("weight_decay", weight_decay, "", "decoupled decay of matrices and embeddings; never of norms and biases", 0, 10);
  f.choice("schedule", schedule, learning_rate_schedules(), "learning rate after the warm-up");
  f.integer("warmup_steps", warmup_steps, "steps", "linear warm-up from 0");
  f.number("final_learning_rate", final_learning_rate, "of learning_rate", "where the schedule ends", 0, 1);
}

StateTensor state_of_piece(const std::string& kind, const at::Tensor& flat, const memory::Piece& piece) {
  return {concat(kind, ".", piece.parameter->name), flat.narrow(0, piece.offset, piece.part.size), piece.parameter->spec, piece.part};
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards, comm::Mesh& mesh) {
  for (const Row& row : registry())
    if (config.name == row.name) return row.make(config, shards, mesh);
  throw Error("optimizer", concat("unknown optimizer ", config.name));
}

}  // namespace colossal::optim
