#include "colossal/run/further_model.h"

#include <algorithm>
#include <memory>
#include <set>
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

/// The keys of a further model that every table of one may have.
struct SourceKeys {
  std::string from, name;
  ConfigDocument own;  ///< those of ModelKeys::own
};

/// Returns these keys of a table, which may have others.
SourceKeys source_keys(const OwnTables& tables, const std::string& name) {
  const auto& all = tables.all();
  const auto table = std::find_if(all.begin(), all.end(), [&](const OwnTable& one) { return one.name == name; });
  require(table != all.end(), "objective", "a further model must have a table of its name with run::ModelKeys: got ",
          name, " without; add it to ObjectiveRow::tables");
  if (table->keys.holds<ModelKeys>()) {
    auto keys = table->keys.as<ModelKeys>();
    return {keys.from, "", std::move(keys.own)};
  }
  const ConfigDocument document = document_of({*table});
  SourceKeys keys{document.text(name + ".from").value_or(""), document.text(name + ".name").value_or(""), {}};
  std::set<std::string> others{name};
  for (const KeyHelp& key : describe_config(table->keys))
    if (!key.type.empty()) others.insert(concat(name, ".", key.key));  // else it is one that Fields::rest() collected
  for (const auto& [key, value] : document.values())
    if (!others.contains(key)) keys.own.put(key, value);
  return keys;
}

/// Returns the source that the keys of a model name.
ModelSource named_source(const SourceKeys& keys, const FurtherModel& model, const models::ModelShape& main,
                         const Program& program) {
  require(keys.from.empty() || keys.name.empty(), "config", model.name, ".from and ", model.name,
          ".name are both set: got \"", keys.from, "\" and \"", keys.name, "\"; set one of them");
  if (!keys.name.empty()) return source_of_preset(keys.name, program, main.vocabulary);
  require(!keys.from.empty(), "config", model.name, ".from must name the weights of the model ", model.name,
          ": a Hugging Face folder, a run folder, a GGUF file, or a preset with random weights: got none");
  ModelSource source = find_source(keys.from, program, main.vocabulary);
  require(model.use != ModelUse::Trained || source.is_preset || has_numbers(keys.from), "model", model.name,
          ".from must name weights that are not quantized, because the model is trained: got ", keys.from,
          "; name the model before quantization, or write the weights as numbers with `colossal export --from ",
          keys.from, " --to FOLDER`");
  return source;
}

/// Gives a model with FurtherModel::outputs its head.
void set_outputs(ResolvedFurther& one) {
  const FurtherModel& model = one.model;
  ModelSource& source = one.source;
  if (model.outputs == 0) return;
  const int64_t found = source.shape.outputs();
  const bool is_new = found == 0 && source.shape.task().continues();
  require(found == model.outputs || (is_new && (model.use == ModelUse::Trained || source.is_preset)), "model",
          model.name, ".from must name a model with ", model.outputs, " output", model.outputs == 1 ? "" : "s",
          " for each token, such as a run with alignment.method = \"reward\" or a folder ",
          "...ForSequenceClassification with one label", model.use == ModelUse::Trained ? ", or a language model" : "",
          ": got ", source.path, ", which ", source.shape.task().purpose(),
          "; train it with that method, or name another");
  source.shape.dropout = 0;
  if (!is_new) return;
  source.shape = models::with_outputs(std::move(source.shape), model.outputs);
  source.has_new_head = true;
  if (!source.low_rank || one.is_constant()) return;
  source.low_rank = with_new_head(std::move(*source.low_rank), source.shape);
  source.adapter = low_rank_adapter(*source.low_rank, source.shape);
}

/// Returns true if an id stands for the same in two tokenizers: for the same bytes, or for tokens without bytes that
/// end documents or are spelled alike. A file may spell what its tokenizer does not, such as the end of "bytes".
bool is_same_token(const text::Tokenizer& one, const text::Tokenizer& other, int64_t id) {
  const std::string bytes = one.piece(id), others = other.piece(id);
  if (!bytes.empty() && !others.empty()) return bytes == others;
  return one.spelling(id) == other.spelling(id) || (id == one.end_id() && id == other.end_id());
}

/// Checks that each id of the tokenizer of a run is the same token in that of a further model. `folders`: of the model
/// and of the run.
void check_same_ids(const text::Tokenizer& tokenizer, const text::Tokenizer& other, const std::string& model,
                    const std::pair<std::string, std::string>& folders) {
  const int64_t ids = std::min(tokenizer.vocabulary_size(), other.vocabulary_size());
  int64_t id = 0;
  while (id < ids && is_same_token(tokenizer, other, id)) ++id;
  require(id == tokenizer.vocabulary_size(), "model", model,
          ".from must name a model with the tokenizer of the run, whose token ids it reads: got ", folders.first,
          ", in which id ", id, " is ", id < ids ? text::description_of(other, id) : "missing", ", and ",
          folders.second, ", in which it is ", text::description_of(tokenizer, id),
          "; name a model with the same tokenizer");
}

/// Returns the source of ModelUse::Original.
ModelSource original_source(const Config& config, const models::ModelShape& main, const Program& program) {
  ModelSource source{.path = config.model.name, .is_preset = true};
  const models::ModelShape shape = models::with_values(main, false);
  if (!config.model.from.empty()) {
    require_model_path(config.model.from, "model");  // otherwise the name of a preset would stand for random weights
    source = find_source(config.model.from, program);
  }
  source.shape = shape;
  LowRankKeys keys = adapter_keys(config);
  if (keys.from.empty()) return source;
  keys = with_source(config, keys, shape);
  const std::string path = concat(source.path, " with the adapters of ", keys.from);
  return {.path = path,
          .shape = shape,
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
    if (!model.from.empty()) {
      one.source = find_source(model.from, program);
      continue;
    }
    const SourceKeys keys = source_keys(tables, model.name);
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
    one.source = named_source(keys, model, main, program);
    set_outputs(one);
  }
  return resolved;
}

void check_texts(const std::vector<ResolvedFurther>& models, const Config& config, const text::Tokenizer& tokenizer,
                 int64_t tokens) {
  for (const ResolvedFurther& one : models) {
    if (one.model.outputs == 0) continue;
    const std::string &name = one.model.name, &path = one.source.path, &other = one.source.tokenizer;
    const models::ModelShape& shape = one.source.shape;
    require(shape.positions == 0 || tokens <= shape.positions, "model", name,
            ".from must name a model with as many positions as a text has tokens, ", tokens, ": got ", path, " with ",
            shape.positions, "; name another model, or shorten the texts");
    const bool has_one = !other.empty() && (other == "bytes" || text::has_tokenizer(other));
    if (has_one && other != config.tokenizer())
      check_same_ids(tokenizer, *text::make_tokenizer(other), name, {other, config.tokenizer()});
    require(tokenizer.vocabulary_size() <= shape.vocabulary, "model", name,
            ".from must name a model with the vocabulary of the run, whose token ids it reads: got ", path, " with ",
            shape.vocabulary, " of ", tokenizer.vocabulary_size(), " ids; name a model with the same tokenizer");
  }
}

}  // namespace colossal::run
