// `colossal` with low-rank adapters on every matrix inside the blocks of a model. All other parameters are frozen.
// Checkpoints contain only the adapters. The other parameters are read from model.from, or drawn from the seed.
//
//   own_adapter train examples/own_adapter/own_adapter.toml --parallel.tensor=2 --parallel.pipeline=2 --parallel.zero=1
//   own_adapter generate --from runs/own_adapter --prompt "TEST("
#include <colossal.h>

namespace models = colossal::models;
namespace nn = colossal::nn;
namespace run = colossal::run;

namespace {

/// The table [low_rank]. A config that has it trains these adapters instead of those of the table [adapter].
struct AdapterKeys {
  int64_t rank = 4;
  double scale = 1;
  void fields(colossal::Fields& f) {
    f.integer("rank", rank, "", "rank of the two matrices that an adapter adds to each matrix", 1, 1024);
    f.number("scale", scale, "", "factor of what an adapter adds", 0, 1000);
  }
  bool operator==(const AdapterKeys&) const = default;
};

/// Makes the adapter. The library calls it on every rank. The factory splits the added matrices over ranks in the same
/// way as the matrix that they belong to.
nn::Adapter make_adapter(const run::Config&, const colossal::OwnKeys& own, const models::ModelShape&) {
  const auto keys = own.as<AdapterKeys>();
  nn::Adapter adapter;
  adapter.treatment = [](const std::string& name) {
    const bool is_adapter = nn::is_low_rank(name);
    return nn::Treatment{.trains = is_adapter, .saved = is_adapter};
  };
  adapter.product = [keys](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight,
                           nn::Parameters& parameters) {
    if (!weight.hidden_matrix || weight.stack) return product;  // no adapter for the head and for experts
    return nn::with_low_rank(std::move(product), weight, parameters, {.rank = keys.rank, .scale = keys.scale});
  };
  return adapter;
}

}  // namespace

int main(int argc, char** argv) {
  colossal::Program program = colossal::built_in();
  program.adapters.add({.table = "low_rank", .keys = AdapterKeys{}, .make = make_adapter});
  return colossal::main(argc, argv, program);
}
