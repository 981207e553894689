#include "colossal/cli/task_evaluation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/agreement.h"
#include "colossal/evaluate/engine_scorer.h"
#include "colossal/infer/decoding/model_runner.h"
#include "colossal/models/registry.h"
#include "colossal/models/task.h"
#include "colossal/text/end_tokens.h"

namespace colossal::cli {
namespace {

constexpr int64_t kTextsInCache = 16;  // texts of the model's length in the KV cache; few of them fill a step

using Tasks = std::vector<evaluate::PreparedTask>;

/// Returns the row of a metric, without its value.
Metric row_of(const std::string& task, const std::string& metric, bool is_first) {
  const bool is_share = metric.find("perplexity") == std::string::npos && metric != "bits_per_byte";
  Metric row{.name = concat("tasks.", task, ".", metric),
             .value = 0.0,
             .unit = is_share ? "share" : "",
             .plot = is_share ? "Tasks" : concat("Tasks: ", metric),
             .legend = is_share ? concat(task, ": ", metric) : task,
             .tag = concat("eval/", task, "/", metric)};
  if (is_first) row.line = concat(task, " ", metric, is_share ? " %.1f %%" : " %.4g");
  return row;
}

std::vector<Metric> rows_of(const Tasks& tasks) {
  std::vector<Metric> rows;
  for (const evaluate::PreparedTask& prepared : tasks)
    for (const std::string& metric : prepared.task.metric)
      rows.push_back(row_of(prepared.task.name, metric, metric == prepared.task.metric.front()));
  return rows;
}

/// Returns a checksum of all that the model reads and must answer.
std::string checksum_of_items(const evaluate::PreparedTask& prepared) {
  nlohmann::json all = nlohmann::json::array();
  for (const evaluate::Part& part : prepared.parts)
    for (const evaluate::Item& item : part.items) all.push_back({item.prompt, item.texts, item.right, item.counted});
  return checksum(all.dump());
}

infer::EngineOptions engine_options(distributed::DistributedModel& model) {
  infer::EngineOptions options;
  const int64_t block = options.block_tokens * model.cache_ranks();
  const int64_t tokens = (model.decoding_model().shape.positions + block - 1) / block * options.block_tokens;
  const double wanted =
      static_cast<double>(kTextsInCache * tokens) * static_cast<double>(infer::ModelRunner::bytes_of_token(model));
  if (wanted < static_cast<double>(options.cache_bytes)) options.cache_bytes = static_cast<int64_t>(wanted);
  return options;
}

evaluate::EngineScorer make_scorer(train::Trainer& trainer, std::vector<int64_t> end_ids) {
  distributed::DistributedModel& model = trainer.engine().distributed();
  return {model, engine_options(model), *trainer.tokenizer(), std::move(end_ids), trainer.config().precision.mode};
}

/// Returns the tokens that end an answer, as commands find them that load the run.
std::vector<int64_t> end_ids_of(train::Trainer& trainer) {
  comm::Group& all = trainer.engine().mesh().all();
  std::string text;
  comm::agree(all, at::kCPU, [&] {
    if (all.rank() == 0) text = nlohmann::json(text::end_ids(trainer.config().run.folder, *trainer.tokenizer())).dump();
  });
  text = comm::broadcast_text(all, at::kCPU, 0, text);
  return parse_json(text, "the list of end tokens", "training").get<std::vector<int64_t>>();
}

std::vector<Metric> measured(train::Trainer& trainer, const Tasks& tasks) {
  evaluate::EngineScorer scorer = make_scorer(trainer, end_ids_of(trainer));
  std::vector<Metric> rows = rows_of(tasks);
  auto row = rows.begin();
  for (const evaluate::TaskResult& result : evaluate::evaluate(scorer, *trainer.tokenizer(), tasks, {}))
    for (const evaluate::Measured& metric : result.metrics) (row++)->value = metric.value;
  return rows;
}

void check_tasks(train::Trainer& trainer, const Tasks& tasks) {
  const models::ModelShape& shape = trainer.engine().model().shape;
  require(shape.task().continues(), "training", "tasks need a model that continues texts: got a ",
          shape.architecture->name, ", which ", shape.task().purpose(), "; leave training.tasks out");
  require(trainer.tokenizer() != nullptr, "training",
          "tasks need texts with a tokenizer, and the data of this run have none: leave training.tasks out");
  evaluate::check(make_scorer(trainer, {}).max_length(), *trainer.tokenizer(), tasks);
}

}  // namespace

std::vector<evaluate::PreparedTask> prepared_tasks(const run::Config& config) {
  Tasks tasks = evaluate::prepare(config.training.tasks, {.data = config.training.tasks_data});
  for (const evaluate::PreparedTask& prepared : tasks) {
    const std::string& name = prepared.task.name;
    const bool is_name =
        std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
    require(is_name, "training", "the name of a task must have letters, digits, _ and - alone, because it is part of ",
            "the names of metrics: got ", printable(name), " in ", prepared.task.where, "; rename it");
  }
  return tasks;
}

train::FurtherEvaluation task_evaluation(const run::Config& config) {
  if (config.training.tasks.empty()) return {};
  const auto tasks = std::make_shared<const Tasks>(prepared_tasks(config));
  train::FurtherEvaluation evaluation{.rows = rows_of(*tasks)};
  for (const evaluate::PreparedTask& prepared : *tasks)
    evaluation.inputs.emplace_back(concat("the lines of the task ", prepared.task.name), checksum_of_items(prepared));
  evaluation.check = [tasks](train::Trainer& trainer) { check_tasks(trainer, *tasks); };
  evaluation.measure = [tasks](train::Trainer& trainer) { return measured(trainer, *tasks); };
  return evaluation;
}

}  // namespace colossal::cli
