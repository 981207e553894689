#include "colossal/run/further_model.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/run/program.h"

namespace colossal::run {
namespace {

constexpr char kOptimizer[] = "optimizer";

/// The keys of [NAME.optimizer], for a document that has no others.
struct OptimizerTable {
  std::string name;
  optim::OptimizerConfig optimizer;
  struct Inner {
    optim::OptimizerConfig& optimizer;
    void fields(Fields& f) { f.section(kOptimizer, optimizer, "optimizer of this model"); }
  };
  void fields(Fields& f) {
    Inner inner{optimizer};
    f.section(name.c_str(), inner, "");
  }
};

}  // namespace

void ModelKeys::fields(Fields& f) {
  f.text("from", from,
         "source of the weights: a Hugging Face folder, a run folder, a GGUF file, or a preset with random weights");
  f.rest(own);
}

bool ModelKeys::operator==(const ModelKeys& other) const {
  return from == other.from && to_toml(*this) == to_toml(other);
}

nn::Adapter ResolvedFurther::adapter() const {
  if (model.use != ModelUse::Frozen) return source.adapter;
  return {.treatment = [](const std::string&) { return nn::Treatment{.trains = false, .saved = false}; },
          .product = source.adapter.product};
}

std::vector<ResolvedFurther> resolve_further(const optim::OptimizerConfig& of_run,
                                             const std::vector<FurtherModel>& models, const OwnTables& tables,
                                             int64_t vocabulary, const Program& program) {
  std::vector<ResolvedFurther> resolved;
  for (const FurtherModel& model : models) {
    ResolvedFurther& one = resolved.emplace_back(ResolvedFurther{.model = model, .source = {}});
    require(tables.has(model.name), "objective",
            "a further model must have a table of its name with run::ModelKeys: got ", model.name,
            " without; add it to ObjectiveRow::tables");
    const auto keys = tables.as<ModelKeys>(model.name);
    if (!keys.own.values().empty()) {
      OptimizerTable table{model.name, of_run};
      table.optimizer.groups = {};  // those of the main model name its parameters
      keys.own.read(table);
      require(model.use == ModelUse::Trained, "config", "[", model.name,
              ".optimizer] needs a model that is trained: ", model.name, " is not; leave it out");
      one.optimizer = table.optimizer;
    }
    if (model.use == ModelUse::WithoutAdapters) continue;
    require(!keys.from.empty(), "config", model.name, ".from must name the weights of the model ", model.name,
            ": a Hugging Face folder, a run folder, a GGUF file, or a preset with random weights: got none");
    one.source = find_source(keys.from, program, vocabulary);
  }
  return resolved;
}

}  // namespace colossal::run
