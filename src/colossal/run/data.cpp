#include "colossal/run/data.h"

#include <algorithm>
#include <utility>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/comm/launch/device.h"
#include "colossal/models/rotary_keys.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/trained_parameters.h"

namespace colossal::run {
namespace {

/// Gives the model the class names of the data, if it can store names and has none.
void learn_class_names(const std::vector<std::string>& names, const Config& config, const Program& program,
                       RunData& run) {
  constexpr const char* kKey = "class_names";
  const std::vector<KeyHelp> keys = describe_config(run.shape.own);
  const bool keeps = std::any_of(keys.begin(), keys.end(), [](const KeyHelp& key) { return key.key == kKey; });
  if (names.empty() || !keeps || !run.shape.task().class_names.empty()) return;
  run.model.own.put(concat("model.", kKey),
                    {.value = ConfigValue::List(names.begin(), names.end()), .where = config.data.path});
  Config named = config;
  named.model = run.model;
  ResolvedModel again = resolve_run(named, program);
  run.shape = std::move(again.shape);
  run.objective = std::move(again.objective);
  run.adapter = std::move(again.adapter);
  run.further = std::move(again.further);
}

void check_end_ids(const RunData& run) {
  for (const int64_t id : run.end_ids)
    require(id >= 0 && id < run.shape.vocabulary, "data",
            "a token that ends an answer must be an id of the model's vocabulary of ", run.shape.vocabulary, ": got ",
            id, "; set data.tokenizer to the one of the model");
}

/// Returns how the model can read longer rows, for the end of a message.
std::string longer_context(const Config& config, const models::ModelShape& shape) {
  if (config.model.from.empty()) return " or raise model.positions";
  if (models::has_position_table(shape)) return ", because the folder has a table of these positions and no others";
  const std::vector<KeyHelp> keys = describe_config(shape.own);
  const bool rotates = std::any_of(keys.begin(), keys.end(), [](const KeyHelp& key) { return key.key == "rope_type"; });
  return concat(", or raise model.positions", rotates ? " and perhaps set model.rope_type and model.rope_factor" : "",
                "; docs/tutorials/long-context.md extends the context of a folder");
}

}  // namespace

void check_text(const Config& config, const ResolvedModel& model) {
  if (!model.tokenizer || !model.shape.task().reads_text()) return;
  const text::Tokenizer& tokenizer = *model.tokenizer;
  const Objective::Ids ids = model.objective.objective->ids(tokenizer);
  require(
      ids.count <= model.shape.vocabulary, "model", "the vocabulary must hold the tokenizer's: got ",
      model.shape.vocabulary, ", tokenizer ", tokenizer.vocabulary_size(),
      ids.beside.empty() ? "" : concat(" and ", ids.beside),
      config.model.from.empty() ? "; set model.vocabulary" : "; set data.tokenizer to the one of that folder's model");
  const int64_t tokens = model.objective.objective->text_tokens();
  require(model.shape.positions == 0 || tokens <= model.shape.positions, "data",
          "sequence must not exceed the model's positions: got ", tokens, " of ", model.shape.positions,
          "; lower data.sequence", longer_context(config, model.shape));
}

ResolvedModel resolve_model(const Config& config, const Program& program) {
  const std::vector<OwnTable> of_adapters = tables_of(program.adapters), of_objectives = tables_of(program.objectives);
  const auto choose = [&](const models::ModelShape& shape) {
    return choose_objective(config, program.objectives, shape, of_adapters);
  };
  models::ModelShape shape = resolve_shape(config.model, program);
  ResolvedModel model{shape, nullptr, choose(shape)};
  const Objective& first = *model.objective.objective;
  model.tokenizer = first.tokenizer(config, shape);
  if (model.tokenizer && shape.task().reads_text())
    shape = resolve_shape(config.model, program, first.ids(*model.tokenizer).count);
  model.shape = shape_for(first, std::move(shape));
  model.objective = choose(model.shape);
  if (!model.objective.objective->has_dropout()) {
    require(config.model.dropout <= 0, "model", "dropout must be 0 with ", model.objective.name, " as it is set",
            ", because it compares log-probabilities: got ", config.model.dropout,
            "; leave model.dropout out, and the model's own is not used");
    model.shape.dropout = 0;
  }
  ChosenAdapter adapter = choose_adapter(config, program.adapters, model.shape, of_objectives);
  for (const auto& [key, value] : adapter.tables.values()) model.objective.tables.put(key, value);
  model.adapter = std::move(adapter.adapter);
  model.low_rank = std::move(adapter.low_rank);
  return model;
}

ResolvedModel resolve_run(const Config& config, const Program& program) {
  ResolvedModel run = resolve_model(config, program);
  run.adapter = with_trained_parameters(config, std::move(run.adapter), run.shape);
  run.further = resolve_further(config, run.objective.models, run.objective.row.values(), run.shape, program);
  if (run.tokenizer) check_texts(run.further, config, *run.tokenizer, run.objective.objective->text_tokens());
  return run;
}

void prepare_data(const Config& config, const Program& program, comm::World& world, const Preparation& how) {
  const auto& rows = program.objectives.rows();
  if (std::none_of(rows.begin(), rows.end(), [](const ObjectiveRow& row) { return bool(row.prepare); })) return;
  const ObjectiveRow row =
      choose_row(config, program.objectives, resolve_shape(config.model, program), tables_of(program.adapters));
  if (!row.prepare) return;
  const auto busy = world.busy("preparing the data");
  row.prepare(world, config, row.values(), how);
}

RunData open_data(const Config& config, const Program& program, const std::string& builtin, int replica,
                  std::optional<at::Device> device) {
  check_training(config, program);
  ResolvedModel model = resolve_run(config, program);
  check_text(config, model);
  const Objective& objective = *model.objective.objective;
  OpenedData opened = objective.open({config, model.shape, model.tokenizer, builtin, replica});
  const tensor::ReplicaRows rows = config.replica_rows(replica);
  data::BatchOptions options{.batch_size = rows.batch_size,
                             .rank = static_cast<int>(rows.replica),
                             .ranks = static_cast<int>(rows.replicas),
                             .micro_batches = rows.micro_batches,
                             .seed = static_cast<uint64_t>(config.training.seed),
                             .threads = opened.threads,
                             .pinned = !(device ? *device : comm::choose_device(config.run.device, 0)).is_cpu()};
  const int64_t sample_tokens = objective.tokens(objective.example(1), model.shape);
  RunData run{std::move(model),
              opened.stream ? std::make_unique<data::Batches>(std::move(opened.stream), options.pinned)
                            : std::make_unique<data::Batches>(opened.training, options),
              nullptr,
              sample_tokens,
              config.model,
              opened.is_builtin,
              std::move(opened.end_ids),
              std::move(opened.chat_template),
              std::move(opened.encode_prompt),
              std::move(opened.facts)};
  check_end_ids(run);
  run.training->tell(opened.notices);
  learn_class_names(opened.class_names, config, program, run);
  options.shuffle = false;
  options.counts_once = true;
  if (opened.held_out && evaluates(config)) run.held_out = std::make_unique<data::Batches>(opened.held_out, options);
  return run;
}

}  // namespace colossal::run
