#include "colossal/run/objective.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <utility>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/known_metrics.h"
#include "colossal/base/suggest.h"
#include "colossal/nn/forward_context.h"

namespace colossal::run {

bool evaluates(const Config& config) { return config.training.evaluate_batches > 0; }

double mean_of(double sum, double weight) { return weight > 0 ? sum / weight : sum; }

std::unique_ptr<text::Tokenizer> Objective::tokenizer(const Config& config, const models::ModelShape& shape) const {
  return shape.task().reads_text() ? text::make_tokenizer(config.tokenizer()) : nullptr;
}

Objective::Ids Objective::ids(const text::Tokenizer& tokenizer) const { return {tokenizer.vocabulary_size()}; }

int64_t Objective::tokens(const tensor::Batch& batch, const models::ModelShape& shape) const {
  return batch.rows() * (batch.has_tokens() ? batch.tokens() : std::max<int64_t>(1, shape.positions));
}

std::string Objective::missing_from(const models::Model&) const { return {}; }

void Objective::check_model(const models::Model& model) const {
  const std::string missing = missing_from(model);
  require(missing.empty(), "objective", "the objective of the run needs a model with ", missing,
          ": got one without; add it to the model, or choose another objective");
}

at::Tensor Objective::evaluate(const models::Model& model, const models::States& end,
                               const nn::ForwardContext& step) const {
  return loss(model, end, step).reshape({1});
}

std::vector<Metric> Objective::metrics(const std::vector<double>& sums, double weight) const {
  return {known_metric("eval_loss", mean_of(sums.at(0), weight))};
}

Objectives& Objectives::add(ObjectiveRow row) {
  require(!row.name.empty() && row.make, "objective", "an objective must have a name and a make: got ",
          row.name.empty() ? "no name" : row.name);
  std::set<std::string> own;
  for (const OwnTable& table : row.tables) {
    require(!table.name.empty(), "objective", "keys of an objective need a table: got ", row.name,
            " without; name it in ObjectiveRow::tables");
    require(own.insert(table.name).second, "objective", "the tables of an objective must differ: got [", table.name,
            "] twice for ", row.name, "; rename one");
    require(!is_common_section(table.name), "objective", "the table of an objective must be new: every config has [",
            table.name, "]; choose another table for ", row.name);
  }
  const std::vector<KeyHelp> common = describe_config(DataConfig());
  for (const KeyHelp& key : describe_config(row.data))
    for (const KeyHelp& other : common)
      require(key.key != other.key, "objective", "the keys of [data] of an objective must be new: every run has ",
              key.key, "; choose another key for ", row.name);
  for (const ObjectiveRow& other : rows_) {
    require(other.name != row.name, "objective", "the name of an objective must be new: ", row.name,
            " is registered already; choose another name");
    const auto has = [](const ObjectiveRow& one, const std::string& table) {
      return std::any_of(one.tables.begin(), one.tables.end(), [&](const auto& t) { return t.name == table; });
    };
    const ObjectiveRow& added = row;
    for (const auto& [selecting, reader] : {std::pair(&added, &other), std::pair(&other, &added)})
      require(selecting->tables.empty() || !has(*reader, selecting->table()), "objective",
              "the table of an objective must be new: [", selecting->table(), "] belongs to ", other.name,
              " already; choose another table for ", row.name);
  }
  rows_.push_back(std::move(row));
  return *this;
}

const ObjectiveRow& Objectives::at(const std::string& name) const {
  std::vector<std::string> names;
  for (const ObjectiveRow& row : rows_) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  throw Error("objective", concat("unknown objective ", name, did_you_mean(name, names)));
}

std::vector<OwnTable> tables_of(const Objectives& objectives) {
  std::vector<OwnTable> tables;
  for (const ObjectiveRow& row : objectives.rows())
    for (const OwnTable& own : row.tables)
      if (std::none_of(tables.begin(), tables.end(), [&](const auto& table) { return table.name == own.name; }))
        tables.push_back(own);
  return tables;
}

std::vector<DataKeys> data_keys_of(const Objectives& objectives) {
  std::vector<DataKeys> keys;
  for (const ObjectiveRow& row : objectives.rows()) keys.push_back({row.name, row.data});
  return keys;
}

namespace {

/// Returns the objective that a table of the config selects; null = none.
const ObjectiveRow* selected(const Config& config, const Objectives& objectives) {
  const ObjectiveRow* chosen = nullptr;
  for (const ObjectiveRow& row : objectives.rows()) {
    if (row.tables.empty() || !has_table(config, row.table())) continue;
    require(!chosen, "config", "a config must have the table of one objective: got [", chosen ? chosen->table() : "",
            "] and [", row.table(), "]; leave one out");
    chosen = &row;
  }
  return chosen;
}

/// Refuses tables that only other objectives read.
void refuse_tables_of_others(const Config& config, const Objectives& objectives, const ObjectiveRow& chosen) {
  for (const ObjectiveRow& row : objectives.rows())
    for (const OwnTable& table : row.tables) {
      const auto is_same = [&](const OwnTable& own) { return own.name == table.name; };
      require(!has_table(config, table.name) || std::any_of(chosen.tables.begin(), chosen.tables.end(), is_same),
              "config", "[", table.name, "] belongs to the objective ", row.name, ", and this run has ", chosen.name,
              "; leave it out, or select ", row.name, " with [", row.table(), "]");
    }
}

}  // namespace

ObjectiveRow choose_row(const Config& config, const Objectives& objectives, const models::ModelShape& shape,
                        const std::vector<OwnTable>& others, std::vector<std::string>* notices) {
  std::vector<OwnTable> tables = tables_of(objectives);
  const ObjectiveRow* chosen = selected(config, objectives);
  for (const OwnTable& other : others)
    for (const OwnTable& table : tables)
      require(table.name != other.name, "objective", "the table of an objective must be new: [", other.name,
              "] belongs to an adapter; choose another table");
  tables.insert(tables.end(), others.begin(), others.end());
  read_tables(config, tables);
  if (!chosen) {
    const models::Task task = shape.task();
    require(!task.objective.empty(), "objective", "a model that is trained alone must have an objective: got ",
            with_article(shape.architecture->name), ", which ", task.purpose(),
            " for other models and is trained as a part of them; name another model");
    chosen = &objectives.at(task.objective);
  }
  refuse_tables_of_others(config, objectives, *chosen);
  ObjectiveRow row = *chosen;
  for (OwnTable& own : row.tables)
    for (const OwnTable& table : tables)
      if (table.name == own.name) own.keys = table.keys;
  std::vector<std::string> renamed;
  row.data = read_data_keys(config.data.own, data_keys_of(objectives), row.name, renamed);
  if (notices) notices->insert(notices->end(), renamed.begin(), renamed.end());
  return row;
}

void complete_keys(Config& config, const Objectives& objectives, const std::vector<OwnTable>& others,
                   std::vector<std::string>* notices) {
  const ObjectiveRow* const chosen = selected(config, objectives);
  if (!chosen || !chosen->complete) return;
  std::vector<OwnTable> tables = tables_of(objectives);
  tables.insert(tables.end(), others.begin(), others.end());
  read_tables(config, tables);
  std::vector<std::string> unseen;
  OwnKeys data = read_data_keys(config.data.own, data_keys_of(objectives), chosen->name, unseen);
  chosen->complete(config, OwnTables(std::move(tables), std::move(data)), notices ? *notices : unseen);
}

models::ModelShape shape_for(const Objective& objective, models::ModelShape shape) {
  return objective.with_parts(
      models::with_values(models::with_outputs(std::move(shape), objective.outputs()), objective.values()));
}

void ChosenObjective::write_keys(Config& config) const {
  config.tables = tables;
  config.data.own = data_document_of(row.data);
}

ChosenObjective choose_objective(const Config& config, const Objectives& objectives, const models::ModelShape& shape,
                                 const std::vector<OwnTable>& others, std::vector<std::string>* notices) {
  ChosenObjective result{.row = choose_row(config, objectives, shape, others, notices)};
  const ObjectiveRow& row = result.row;
  const OwnTables values = row.values();
  result.name = row.name;
  result.objective = row.make(config, values, shape);
  result.tables = document_of(row.tables);
  if (row.models) result.models = row.models(config, values, shape);
  return result;
}

tensor::Batch batch_of_ones(const Objective& objective, const Config& config) {
  const int64_t rows = config.replica_rows(0).count();
  tensor::Batch batch = objective.example(rows).map([](const tensor::Field& field) {
    return at::ones(field.tensor.sizes(), field.tensor.options().device(at::kCPU));
  });
  if (config.data.documents != "joined" && batch.has_tokens() && !batch.find("documents").defined()) {
    const at::Tensor row = at::arange(batch.tokens()).div(objective.text_tokens(), "floor");
    batch.add("documents", {row.repeat({rows, 1}), {tensor::Dim::Row, tensor::Dim::Token}, {}, true});
  }
  return batch;
}

models::Costs costs_of(const models::ModelShape& shape, const Objective& objective) {
  return costs_of(shape, objective, {});
}

models::Costs costs_of(const models::ModelShape& shape, const Objective& objective, const tensor::Batch& batch) {
  const tensor::Batch first = objective.example(1);
  tensor::Batch example = first;
  for (const auto& [name, field] : first.fields()) {
    const at::Tensor own = batch.find(name);
    if (!own.defined()) continue;
    std::vector<int64_t> sizes = own.sizes().vec();
    sizes.front() = 1;
    example =
        example.with(name, {at::empty(sizes, field.tensor.options()), field.dims, field.ignored, field.stays_whole});
  }
  return models::costs_of(shape, objective.with_added(std::move(example)),
                          [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
                            return objective.missing_from(model).empty() ? objective.loss(model, end, step)
                                                                         : at::Tensor();
                          });
}

}  // namespace colossal::run
