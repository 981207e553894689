#include "colossal/run/further_model.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/model_path.h"
#include "colossal/run/adapter_modules.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/frozen_base.h"
#include "colossal/run/low_rank_adapter.h"
#include "colossal/run/program.h"
#include "colossal/run/resolve_shape.h"

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

/// Returns the keys of ModelKeys in a table, which may have others.
ModelKeys model_keys(const OwnTables& tables, const std::string& name) {
  const auto& all = tables.all();
  const auto table = std::find_if(all.begin(), all.end(), [&](const OwnTable& one) { return one.name == name; });
  require(table != all.end(), "objective", "a further model must have a table of its name with run::ModelKeys: got ",
          name, " without; add it to ObjectiveRow::tables");
  if (table->keys.holds<ModelKeys>()) return table->keys.as<ModelKeys>();
  return {.from = document_of({*table}).text(name + ".from").value_or("")};
}

/// Returns the source of ModelUse::Original.
ModelSource original_source(const Config& config, const models::ModelShape& main, const Program& program) {
  ModelSource source{.path = config.model.name, .is_preset = true};
  if (!config.model.from.empty()) {
    require_model_path(config.model.from, "model");  // otherwise the name of a preset would stand for random weights
    source = find_source(config.model.from, program);
  }
  source.shape = main;
  LowRankKeys keys = adapter_keys(config);
  if (keys.from.empty()) return source;
  keys = with_source(config, keys, main);
  const std::string path = concat(source.path, " with the adapters of ", keys.from);
  return {.path = path,
          .shape = main,
          .base = std::make_shared<const ModelSource>(std::move(source)),
          .low_rank = std::move(keys)};
}

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
  if (!is_constant()) return source.adapter;
  nn::Parameters::Options::ProductOf product = source.adapter.product;
  if (source.low_rank) {  // a run's own adapters are merged
    const bool has_adapters = !source.low_rank->from.empty();
    product = has_adapters ? low_rank_adapter(*source.low_rank, source.shape).product : nullptr;
  }
  if (base)
    product = [codes = base](std::shared_ptr<const nn::Product> inside, const nn::Parameter& weight,
                             nn::Parameters& parameters) { return codes->wrap(std::move(inside), weight, parameters); };
  return {.treatment = [](const std::string&) { return nn::Treatment{.trains = false, .saved = false}; },
          .product = std::move(product)};
}

std::vector<ResolvedFurther> resolve_further(const Config& config, const std::vector<FurtherModel>& models,
                                             const OwnTables& tables, const models::ModelShape& main,
                                             const Program& program) {
  std::vector<ResolvedFurther> resolved;
  for (const FurtherModel& model : models) {
    ResolvedFurther& one = resolved.emplace_back(ResolvedFurther{.model = model, .source = {}});
    const ModelKeys keys = model_keys(tables, model.name);
    if (!keys.own.values().empty()) {
      OptimizerTable table{model.name, config.optimizer};
      table.optimizer.groups = {};  // those of the main model name its parameters
      keys.own.read(table);
      require(model.use == ModelUse::Trained, "config", "[", model.name,
              ".optimizer] needs a model that is trained: ", model.name, " is not; leave it out");
      one.optimizer = table.optimizer;
    }
    if (model.use == ModelUse::WithoutAdapters) continue;
    if (model.use == ModelUse::Original) {
      one.source = original_source(config, main, program);
      const LowRankKeys keys_of_run = adapter_keys(config);
      if (keys_of_run.kind != "none" && keys_of_run.base != "model" && keys_of_run.from.empty())
        one.base = std::make_shared<const FrozenBase>(
            keys_of_run, main, AdapterModules(main).parameters_of("adapter.trained", keys_of_run.trained));
      continue;
    }
    require(!keys.from.empty(), "config", model.name, ".from must name the weights of the model ", model.name,
            ": a Hugging Face folder, a run folder, a GGUF file, or a preset with random weights: got none");
    one.source = find_source(keys.from, program, main.vocabulary);
    require(model.use != ModelUse::Trained || one.source.is_preset || has_numbers(keys.from), "model", model.name,
            ".from must name weights that are not quantized, because the model is trained: got ", keys.from,
            "; name the model before quantization, or write the weights as numbers with `colossal export --from ",
            keys.from, " --to FOLDER`");
  }
  return resolved;
}

}  // namespace colossal::run
