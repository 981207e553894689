#include "colossal/run/config_changes.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/layout_keys.h"
#include "colossal/run/learned_parts.h"
#include "colossal/run/resolve_shape.h"

namespace colossal::run {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;  // dotted keys and TOML texts, in order

constexpr const char *kModel = "model", *kConfig = "config";  // keys in the progress of a checkpoint

/// Effects of common keys and of sections. A key has the effect of its longest part that is listed.
const std::map<std::string, KeyEffect>& effects() {
  static const std::map<std::string, KeyEffect> rows{
      {"run", KeyEffect::None},
      {"model", KeyEffect::Model},
      {"model.name", KeyEffect::None},  // the values of the model that it names are compared instead
      {"model.from", KeyEffect::None},
      {"model.vocabulary", KeyEffect::None},
      {"model.hidden", KeyEffect::None},
      {"model.layers", KeyEffect::None},
      {"model.ffn", KeyEffect::None},
      {"model.positions", KeyEffect::Training},  // a limit; a table of positions has another size
      {"model.source_tokens", KeyEffect::Training},
      {"model.dropout", KeyEffect::Training},
      {"model.class_names", KeyEffect::None},
      {"data", KeyEffect::Training},
      {"data.path", KeyEffect::None},  // data may have moved; their contents are compared when a position is restored
      {"data.sources", KeyEffect::None},
      {"data.tokenizer", KeyEffect::None},
      {"data.threads", KeyEffect::None},
      {"parallel", KeyEffect::None},
      {"parallel.compress", KeyEffect::Training},
      {"parallel.expert.compress", KeyEffect::Training},
      {"precision", KeyEffect::Training},
      {"memory", KeyEffect::None},
      {"optimizer", KeyEffect::Training},
      {"training", KeyEffect::Training},
      {"adapter.from", KeyEffect::None},  // the checkpoint has its values
      {"rollout.cache", KeyEffect::None},
      {"rollout.keep_steps", KeyEffect::None},
      {"reward.workers", KeyEffect::None},
      {"reward.timeout", KeyEffect::None},
      {"reward.retries", KeyEffect::None},
      {"training.accumulate", KeyEffect::None},
      {"training.ema", KeyEffect::None},  // the average begins with the weights, or is dropped; they train as before
      {"training.cuda_graph", KeyEffect::None},
      {"training.save_every", KeyEffect::None},
      {"training.keep_last", KeyEffect::None},
      {"training.evaluate_every", KeyEffect::None},
      {"training.evaluate_batches", KeyEffect::None},
      {"training.tasks", KeyEffect::None},
      {"training.tasks_data", KeyEffect::None},
      {"training.sample_prompt", KeyEffect::None},
      {"training.sample_tokens", KeyEffect::None},
      {"training.sample_every", KeyEffect::None},
  };
  return rows;
}

/// Returns the effect of the longest part of `key` that is listed; none = no part is.
std::optional<KeyEffect> common_effect(std::string key) {
  for (;;) {
    if (const auto row = effects().find(key); row != effects().end()) return row->second;
    const size_t dot = key.rfind('.');
    if (dot == std::string::npos) return std::nullopt;
    key.resize(dot);
  }
}

Values values_of(const Config& config) {
  Values values;
  for (const KeyHelp& key : describe_config(config)) values.emplace_back(key.key, key.default_value);
  return values;
}

const std::string* find(const Values& values, const std::string& key) {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == key; });
  return found == values.end() ? nullptr : &found->second;
}

/// Returns the values of a model that was saved; an empty object = unknown.
nlohmann::json saved_model(const nlohmann::json& progress, const Config& saved, const Config& now,
                           const models::ModelShape& shape, const Program& program) {
  if (const auto found = progress.find(kModel);
      found != progress.end() && found->is_object() &&
      std::all_of(found->begin(), found->end(), [](const auto& value) { return value.is_string(); }))
    return *found;
  models::ModelConfig config = saved.model;
  for (const std::string& from : {saved.model.from, now.model.from}) {
    config.from = from;
    try {
      return run::values_of(resolve_shape(config, program, shape.vocabulary));
    } catch (const std::exception&) {
      continue;  // the folder has moved, or is of another version
    }
  }
  return nlohmann::json::object();
}

void see(const std::string& key, const std::string& from, const std::string& to, KeyEffect effect,
         ConfigChanges& changes) {
  if (from != to) changes.push_back({concat(key, " = ", from, " -> ", to), effect});
}

/// Adds the changes of the model. Own keys of another architecture are not compared.
void compare_models(const nlohmann::json& before, const models::ModelShape& shape, const Program& program,
                    ConfigChanges& changes) {
  constexpr const char* kArchitecture = "model.architecture";
  const nlohmann::json now = run::values_of(shape);
  const bool is_same = before.value(kArchitecture, "") == now[kArchitecture];
  nlohmann::json otherwise = now;  // of keys that the version which saved did not have
  std::map<std::string, std::string> previous;
  for (const KeyHelp& key : models::describe_own(shape.architecture->own)) {
    const std::string name = "model." + key.key;
    otherwise[name] = key.default_value;
    if (!key.previous.empty()) previous[name] = name.substr(0, name.rfind('.') + 1) + key.previous;
  }
  for (const auto& [key, value] : now.items()) {
    if (!is_same && !before.contains(key)) continue;
    const auto renamed = previous.find(key);
    const std::string saved_as = renamed == previous.end() || before.contains(key) ? key : renamed->second;
    see(key, before.value(saved_as, otherwise[key].get<std::string>()), value, effect_of(key, shape, program), changes);
  }
}

/// Adds the keys whose values differ. A table of the program that one side lacks has no values there.
void compare(const Values& before, const Values& now, const std::function<KeyEffect(const std::string&)>& effect,
             ConfigChanges& changes) {
  const std::string none = "not set";
  for (const auto& [key, value] : now) {
    const std::string* from = find(before, key);
    see(key, from ? *from : none, value, effect(key), changes);
  }
  for (const auto& [key, value] : before)
    if (!find(now, key)) see(key, value, none, effect(key), changes);
}

/// Adds the parts of the layout that belong to what the run learns, which defaults and axes may change without a key of
/// their own: a pipeline has other micro-batches than one stage.
void compare_layouts(const Config& before, const Config& now, const models::ModelShape& shape, const Program& program,
                     ConfigChanges& changes) {
  const auto chosen = choose_objective(now, program.objectives, shape, tables_of(program.adapters));
  const LearnedParts learned(now.parallel, shape, *chosen.objective);
  if (!learned.any()) return;
  const std::vector<LearnedPart> from = learned.of(before.parallel, before.micro_batches()),
                                 to = learned.of(now.parallel, now.micro_batches());
  for (size_t i = 0; i < to.size(); ++i)
    if (from[i].value != to[i].value)
      changes.push_back(
          {concat(to[i].what, " = ", from[i].value, " -> ", to[i].value, " (", to[i].why, ")"), KeyEffect::Training});
}

std::optional<Config> saved_config(const nlohmann::json& progress) {
  try {
    Config saved;
    ConfigDocument::parse(progress.value(kConfig, ""), "its config").read(saved);
    return saved;
  } catch (const std::exception&) {
    return std::nullopt;  // saved by a version with other keys
  }
}

/// Returns the config with all keys of [data] that the objective has, and without those of other objectives, which
/// older configs have at their defaults.
Config with_data_keys(Config config, const std::string& objective, const Program& program) {
  std::vector<std::string> notices;
  try {
    config.data.own =
        data_document_of(read_data_keys(config.data.own, data_keys_of(program.objectives), objective, notices));
  } catch (const std::exception&) {  // it had another objective, so its keys are changes
  }
  return config;
}

}  // namespace

KeyEffect effect_of(const std::string& key, const models::ModelShape& shape, const Program& program) {
  const auto is_in = [&](const std::vector<std::string>& keys) { return is_among(key, keys); };
  if (shape.part<models::MixtureSizes>().experts > 0 &&
      is_in({"training.accumulate", "parallel.pipeline.micro_batches"}))
    return KeyEffect::Training;
  for (const std::string& own : shape.architecture->hugging_face.own_training)
    if (key == concat("model.", own)) return KeyEffect::Training;
  for (const AdapterRow& adapter : program.adapters.rows())
    if (is_in({adapter.table})) return effects().contains(key) ? effects().at(key) : KeyEffect::Model;
  return common_effect(key).value_or(KeyEffect::Training);
}

std::string listed(const ConfigChanges& changes, std::optional<KeyEffect> effect) {
  std::string text;
  for (const ConfigChange& change : changes)
    if (!effect || change.effect == *effect) text += (text.empty() ? "" : ", ") + change.text;
  return text;
}

nlohmann::json values_of(const models::ModelShape& shape) {
  struct Sizes {
    models::ModelShape shape;
    std::string architecture;
    void fields(Fields& f) {
      f.text("architecture", architecture, "");
      f.integer("vocabulary", shape.vocabulary, "", "");
      f.integer("hidden", shape.hidden, "", "");
      f.integer("layers", shape.layers, "", "");
      f.integer("heads", shape.heads, "", "");
      f.integer("kv_heads", shape.kv_heads, "", "");
      f.integer("head_dim", shape.head_dim, "", "");
      f.integer("ffn", shape.ffn, "", "");
      f.integer("positions", shape.positions, "", "");
      f.number("norm_epsilon", shape.norm_epsilon, "", "");
      f.number("dropout", shape.dropout, "", "");
      f.flag("tied", shape.tied, "");
    }
  };
  nlohmann::json values = nlohmann::json::object();
  const models::OwnSizes& own = shape.own.is_empty() ? shape.architecture->own : shape.own;
  for (const auto& keys : {describe_config(Sizes{shape, shape.architecture->name}), models::describe_own(own)})
    for (const KeyHelp& key : keys) values["model." + key.key] = key.default_value;
  if (shape.outputs() > 0) values["model.outputs"] = std::to_string(shape.outputs());
  return values;
}

ConfigChanges changes_since(const nlohmann::json& progress, const Config& now, const models::ModelShape& shape,
                            const Program& program) {
  const std::optional<Config> saved = saved_config(progress);
  if (!saved) return {};
  const std::string objective = choose_row(now, program.objectives, shape, tables_of(program.adapters)).name;
  ConfigChanges changes;
  if (const auto model = saved_model(progress, *saved, now, shape, program); !model.empty())
    compare_models(model, shape, program, changes);
  const auto others = [](const Config& config) {
    Values values = values_of(config);
    std::erase_if(values, [](const auto& value) {
      const bool is_of_model = value.first != "model.name" && value.first != "model.from";
      return is_among(value.first, {"run"}) || (is_of_model && is_among(value.first, {"model"}));
    });
    return values;
  };
  compare(
      others(with_data_keys(*saved, objective, program)), others(with_data_keys(now, objective, program)),
      [&](const std::string& key) { return effect_of(key, shape, program); }, changes);
  compare_layouts(*saved, now, shape, program, changes);
  return changes;
}

ConfigChanges changes_since(const nlohmann::json& progress, const Config& now) {
  const std::optional<Config> saved = saved_config(progress);
  if (!saved) return {};
  const auto relevant = [](const Config& config) {
    Values values = values_of(config);
    std::erase_if(values, [](const auto& value) {
      return !is_among(value.first, {"parallel", "precision", "memory", "optimizer", "training"});
    });
    return values;
  };
  ConfigChanges changes;
  compare(
      relevant(*saved), relevant(now),
      [](const std::string& key) { return common_effect(key).value_or(KeyEffect::Training); }, changes);
  return changes;
}

}  // namespace colossal::run
