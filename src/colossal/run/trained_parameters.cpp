#include "colossal/run/trained_parameters.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/models/decoder.h"
#include "colossal/models/model.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::run {
namespace {

nn::RowRange new_rows(const Config& config, const models::ModelShape& shape) {
  const std::string& from = config.model.from;
  require(
      !from.empty(), "training",
      "parameters = \"new-rows\" needs model.from, a folder that `colossal expand` wrote: got none; set it, or train "
      "\"embeddings\"");
  const Expansion expansion = Expansion::read(from);
  const int64_t end = expansion.first + expansion.count;
  require(end <= shape.vocabulary, "training", from, "/", kExpansionFile,
          " must name rows of the vocabulary: got rows ", expansion.first, " to ", end, " of ", shape.vocabulary,
          "; write the folder with `colossal expand` again");
  return {expansion.first, end};
}

}  // namespace

void Expansion::fields(Fields& f) {
  f.integer("first", first, "", "first row that was added", 0, models::kMaxSize);
  f.integer("count", count, "rows", "number of rows that were added", 1, models::kMaxSize);
  f.texts("names", names, "tensors of the folder that got the rows");
}

Expansion Expansion::read(const std::string& folder) {
  const std::string path = folder + "/" + kExpansionFile;
  std::error_code ignored;
  require(std::filesystem::is_regular_file(path, ignored), "training", "parameters = \"new-rows\" needs ", path,
          ", which `colossal expand` writes: there is none; name that command's folder in model.from, or train "
          "\"embeddings\"");
  const nlohmann::json stored = read_json_object(path, "training");
  try {
    return colossal::read_stored<Expansion>(stored, "training");
  } catch (const Error& error) {
    throw Error("training", concat(path, ": ", error.message()));
  }
}

std::vector<std::string> token_tables(const models::ModelShape& shape) {
  if (shape.vocabulary == 0) return {};
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  models::make_model(shape, layers);
  std::vector<std::string> names;
  for (const nn::Parameter& p : parameters.declared()) {
    const bool may_be = p.name == "embedding.weight" || p.name == "head.weight" || p.name == "head.bias";
    if (may_be && p.spec.shape.front() == shape.vocabulary) names.push_back(p.name);
  }
  return names;
}

namespace {

nn::Adapter without_language_model(nn::Adapter adapter, const models::ModelShape& shape) {
  const int64_t frozen = shape.part<models::FrozenLanguageModel>().blocks;
  if (frozen == 0 || adapter.treatment) return adapter;
  adapter.treatment = [frozen, blocks = shape.blocks()](const std::string& name) {
    const std::optional<int64_t> block = models::block_of(name, blocks);
    return nn::Treatment{.trains = !name.starts_with("embedding.") && !(block && *block < frozen)};
  };
  return adapter;
}

}  // namespace

nn::Adapter with_trained_parameters(const Config& config, nn::Adapter adapter, const models::ModelShape& shape) {
  const std::string& parameters = config.training.parameters;
  if (parameters == "all") return without_language_model(std::move(adapter), shape);
  // An adapter decides itself what trains.
  require(!adapter.treatment && !adapter.product, "training", "parameters must be \"all\" with an adapter: got \"",
          parameters, "\"; leave out parameters, or the table of the adapter");
  const std::vector<std::string> tables = token_tables(shape);
  require(!tables.empty(), "training", "parameters = \"", parameters,
          "\" needs a model with a table of tokens: got one that reads no text; leave it out");
  const nn::RowRange rows = parameters == "new-rows" ? new_rows(config, shape) : nn::RowRange{};
  const std::string new_head = shape.outputs() > 0  ? concat(models::kScoreHead, ".weight")
                               : shape.has_values() ? concat(models::kValueHead, ".weight")
                                                    : "";
  adapter.treatment = [tables, rows, new_head](const std::string& name) {
    if (name == new_head) return nn::Treatment{};
    return nn::Treatment{.trains = std::find(tables.begin(), tables.end(), name) != tables.end(), .rows = rows};
  };
  return adapter;
}

}  // namespace colossal::run
