#include "colossal/checkpoint/peft/config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr const char* kPeft = "peft";
constexpr int64_t kMaxConfigBytes = 16 << 20;

/// Reads members of an adapter_config.json.
class PeftReader {
 public:
  PeftReader(std::string path, ordered_json object) : path_(std::move(path)), object_(std::move(object)) {}

  const ordered_json& at(const char* key) const {
    static const ordered_json none;
    const auto found = object_.find(key);
    return found == object_.end() ? none : *found;
  }
  double number(const char* key, double otherwise, double low) const {
    const ordered_json& value = at(key);
    if (value.is_null()) return otherwise;
    require(value.is_number() && value.get<double>() >= low, kPeft, path_, ": ", key, " must be a number of at least ",
            low, ": got ", shown(value));
    return value.get<double>();
  }
  int64_t rank(const char* key, const ordered_json& value) const {
    require(value.is_number_integer() && value.get<int64_t>() >= 1, kPeft, path_, ": ", key,
            " must be a rank of at least 1: got ", shown(value));
    return value.get<int64_t>();
  }
  bool flag(const char* key) const {
    const ordered_json& value = at(key);
    require(value.is_null() || value.is_boolean(), kPeft, path_, ": ", key, " must be true or false: got ",
            shown(value));
    return value.is_boolean() && value.get<bool>();
  }
  std::string text(const char* key) const {
    const ordered_json& value = at(key);
    require(value.is_null() || value.is_string(), kPeft, path_, ": ", key, " must be a text: got ", shown(value));
    return value.is_null() ? "" : value.get<std::string>();
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> all;
    const ordered_json& value = at(key);
    if (value.is_null()) return all;
    require(value.is_array(), kPeft, path_, ": ", key, " must be a list of names: got ", shown(value));
    for (const ordered_json& one : value) {
      require(one.is_string(), kPeft, path_, ": ", key, " must be a list of names: got ", shown(value));
      all.push_back(one.get<std::string>());
    }
    return all;
  }
  PeftConfig::Patterns patterns(const char* key, bool are_ranks) const {
    PeftConfig::Patterns all;
    const ordered_json& value = at(key);
    if (value.is_null()) return all;
    require(value.is_object(), kPeft, path_, ": ", key, " must be an object of patterns: got ", shown(value));
    for (const auto& [pattern, of] : value.items()) {
      require(of.is_number(), kPeft, path_, ": ", key, " must have a number for each pattern: got ", shown(value));
      all.emplace_back(pattern, are_ranks ? static_cast<double>(rank(key, of)) : of.get<double>());
    }
    return all;
  }
  static std::string shown(const ordered_json& value) { return printable(value.dump()); }

  /// Checks a key that PeftConfig lacks. Errors ("peft"): it changes what the adapters compute.
  void check_idle(const std::string& key) const {
    // They describe how a folder was made, or do nothing without another key that is checked.
    static const std::set<std::string> kIdle{"auto_mapping",      "inference_mode",   "peft_version",
                                             "revision",          "runtime_config",   "megatron_core",
                                             "qalora_group_size", "exclude_modules",  "layers_to_transform",
                                             "layers_pattern",    "init_lora_weights"};
    const ordered_json& value = object_.at(key);
    const bool is_off = value.is_null() || value == false || value == 0 || value.empty() || value == "";
    // These starts change the base, so the adapters are no change of the model of that name.
    if (key == "init_lora_weights") {
      const std::string start = value.is_string() ? value.get<std::string>() : "";
      for (const char* other : {"pissa", "olora", "corda", "loftq", "lora_ga"})
        require(!start.starts_with(other), kPeft, path_, ": init_lora_weights must be a start that leaves the base as ",
                "it is: got ", shown(value), "; save it with peft's path_initial_model_for_weight_conversion");
    }
    require(is_off || kIdle.contains(key), kPeft, path_, ": ", key,
            " must have no effect, because this library has no such adapters: got ", shown(value),
            "; merge the adapters into the model with peft");
  }
  const ordered_json& object() const { return object_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  ordered_json object_;
};

/// Returns the value of the first pattern that matches, as peft finds it; `otherwise` if none does.
double found_in(const PeftConfig::Patterns& patterns, const std::string& module, double otherwise) {
  for (const auto& [pattern, value] : patterns) {
    try {
      // peft also matches the end of a name that begins after a dot
      if (std::regex_match(module, std::regex(concat("(.*\\.)?(", pattern, ")")))) return value;
    } catch (const std::regex_error&) {
      throw Error(kPeft,
                  concat("rank_pattern and alpha_pattern must have regular expressions: got ", printable(pattern)));
    }
  }
  return otherwise;
}

/// Returns true if a name of target_parameters is one of experts.
bool is_of_experts(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return std::any_of(std::begin(kExpertParameters), std::end(kExpertParameters),
                     [&](const char* known) { return last == known; });
}

nlohmann::json object_of(const PeftConfig::Patterns& patterns) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [pattern, value] : patterns) {
    if (value == std::floor(value))
      object[pattern] = static_cast<int64_t>(value);
    else
      object[pattern] = value;
  }
  return object;
}

}  // namespace

PeftConfig PeftConfig::read(const std::string& path) {
  return of(parse_ordered_json(read_file(path, kMaxConfigBytes), path, kPeft), path);
}

PeftConfig PeftConfig::of(const ordered_json& object, const std::string& path) {
  require(object.is_object(), kPeft, path, " must have a JSON object");
  const PeftReader r(path, object);
  const std::string kind = r.text("peft_type");
  require(kind == "LORA", kPeft, path, ": peft_type must be LORA: got ", kind.empty() ? "none" : printable(kind));
  PeftConfig config;
  if (!r.at("r").is_null()) config.rank = r.rank("r", r.at("r"));
  config.alpha = r.number("lora_alpha", config.alpha, 0);
  config.dropout = r.number("lora_dropout", 0, 0);
  config.root_scale = r.flag("use_rslora");
  config.magnitudes = r.flag("use_dora");
  config.fan_in_fan_out = r.flag("fan_in_fan_out");
  config.keeps_ties = r.flag("ensure_weight_tying");
  config.ranks = r.patterns("rank_pattern", true);
  config.alphas = r.patterns("alpha_pattern", false);
  if (r.at("target_modules").is_string())
    config.target_pattern = r.text("target_modules");
  else
    config.targets = r.texts("target_modules");
  config.parameters = r.texts("target_parameters");
  for (const std::string& name : config.parameters)
    require(is_of_experts(name), kPeft, path,
            ": target_parameters must name gate_up_proj and down_proj of experts: got ", printable(name),
            "; merge the adapters into the model with peft");
  require(config.parameters.empty() || !config.magnitudes, kPeft, path,
          ": use_dora must be false with target_parameters, which peft has without it: got true");
  config.trained = r.texts("modules_to_save");
  config.task = r.text("task_type");
  config.base = r.text("base_model_name_or_path");
  const std::string bias = r.text("bias");
  require(bias.empty() || bias == "none", kPeft, path,
          ": bias must be none, because no adapter here trains biases: "
          "got ",
          printable(bias), "; merge the adapters into the model with peft");
  static const std::set<std::string> kRead{"peft_type",
                                           "r",
                                           "lora_alpha",
                                           "lora_dropout",
                                           "use_rslora",
                                           "use_dora",
                                           "fan_in_fan_out",
                                           "rank_pattern",
                                           "alpha_pattern",
                                           "target_modules",
                                           "target_parameters",
                                           "modules_to_save",
                                           "task_type",
                                           "bias",
                                           "base_model_name_or_path",
                                           "ensure_weight_tying"};
  for (const auto& [key, value] : r.object().items())
    if (!kRead.contains(key)) r.check_idle(key);
  return config;
}

nlohmann::json PeftConfig::to_json() const {
  nlohmann::json object = nlohmann::json::object();
  for (const char* key :
       {"alora_invocation_tokens", "arrow_config", "auto_mapping", "corda_config", "eva_config", "exclude_modules",
        "kasa_config", "layer_replication", "layers_pattern", "layers_to_transform", "lora_ga_config",
        "megatron_config", "monteclora_config", "revision", "trainable_token_indices", "use_bdlora", "velora_config"})
    object[key] = nullptr;
  object["target_parameters"] = parameters.empty() ? nlohmann::json() : nlohmann::json(parameters);
  object["alpha_pattern"] = object_of(alphas);
  object["base_model_name_or_path"] = base.empty() ? nlohmann::json() : nlohmann::json(base);
  object["bias"] = "none";
  object["ensure_weight_tying"] = keeps_ties;
  object["fan_in_fan_out"] = fan_in_fan_out;
  object["inference_mode"] = true;
  object["init_lora_weights"] = true;
  object["loftq_config"] = nlohmann::json::object();
  if (alpha == std::floor(alpha))
    object["lora_alpha"] = static_cast<int64_t>(alpha);
  else
    object["lora_alpha"] = alpha;
  object["lora_bias"] = false;
  object["lora_dropout"] = dropout;
  object["megatron_core"] = "megatron.core";
  object["modules_to_save"] = trained.empty() ? nlohmann::json() : nlohmann::json(trained);
  object["peft_type"] = "LORA";
  object["peft_version"] = "0.21.2";
  object["qalora_group_size"] = 16;
  object["r"] = rank;
  object["rank_pattern"] = object_of(ranks);
  object["target_modules"] = target_pattern.empty() ? nlohmann::json(targets) : nlohmann::json(target_pattern);
  object["task_type"] = task.empty() ? nlohmann::json() : nlohmann::json(task);
  object["use_dora"] = magnitudes;
  object["use_qalora"] = false;
  object["use_rslora"] = root_scale;
  return object;
}

int64_t PeftConfig::rank_of(const std::string& module) const {
  return static_cast<int64_t>(found_in(ranks, module, static_cast<double>(rank)));
}

double PeftConfig::alpha_of(const std::string& module) const { return found_in(alphas, module, alpha); }

bool PeftConfig::targets_parameter(const std::string& name) const {
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const std::string& target) { return name == target || name.ends_with("." + target); });
}

double PeftConfig::scale_of(const std::string& module) const {
  const auto of = static_cast<double>(rank_of(module));
  return alpha_of(module) / (root_scale ? std::sqrt(of) : of);
}

}  // namespace colossal::checkpoint
