#include "colossal/infer/generation_defaults.h"

#include <filesystem>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::infer {
namespace {

constexpr const char* kGenerationConfig = "generation_config";
constexpr int64_t kDefaultTopK = 50;  // default of transformers' GenerationConfig, used if a file samples without top_k

/// Keys that change the generated text, each with the value that has no effect.
std::vector<std::pair<const char*, nlohmann::json>> ignored_keys() {
  std::vector<std::pair<const char*, nlohmann::json>> keys{{"num_beams", 1},
                                                           {"typical_p", 1},
                                                           {"epsilon_cutoff", 0},
                                                           {"eta_cutoff", 0},
                                                           {"min_length", 0},
                                                           {"no_repeat_ngram_size", 0},
                                                           {"min_new_tokens", 0},
                                                           {"guidance_scale", 1},
                                                           {"encoder_no_repeat_ngram_size", 0},
                                                           {"penalty_alpha", 0},
                                                           {"encoder_repetition_penalty", 1}};
  for (const char* key :
       {"top_h", "bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id",
        "forced_eos_token_id", "exponential_decay_length_penalty", "stop_strings", "watermarking_config"})
    keys.emplace_back(key, nullptr);
  return keys;
}

/// Sets `to` to the value of `key`, if the file has one.
void read_number(const nlohmann::json& config, const char* key, double& to) {
  if (!config.contains(key) || config[key].is_null()) return;
  require(config[key].is_number(), kGenerationConfig, key, " must be a number: got ", printable(config[key].dump()));
  to = config[key].get<double>();
}

void read_number(const nlohmann::json& config, const char* key, int64_t& to) {
  if (!config.contains(key) || config[key].is_null()) return;
  require(config[key].is_number_integer(), kGenerationConfig, key, " must be a whole number: got ",
          printable(config[key].dump()));
  to = config[key].get<int64_t>();
}

GenerationDefaults defaults_of(const nlohmann::json& config) {
  GenerationDefaults defaults;
  SamplingOptions& s = defaults.sampling;
  const nlohmann::json samples = config.value("do_sample", nlohmann::json(nullptr));
  require(samples.is_boolean() || samples.is_null(), kGenerationConfig, "do_sample must be true or false: got ",
          printable(samples.dump()));
  const bool draws = samples.is_boolean() && samples.get<bool>();
  s.temperature = 1;
  if (draws) s.top_k = kDefaultTopK;
  read_number(config, "temperature", s.temperature);
  read_number(config, "top_k", s.top_k);
  read_number(config, "top_p", s.top_p);
  read_number(config, "min_p", s.min_p);
  read_number(config, "repetition_penalty", s.repetition_penalty);
  s.check();
  if (!draws) s.temperature = 0;
  for (const auto& [key, off] : ignored_keys())
    if (config.contains(key) && !config[key].is_null() && config[key] != off) defaults.ignored.emplace_back(key);
  return defaults;
}

}  // namespace

GenerationDefaults read_generation_defaults(const std::string& model) {
  const std::string path = model + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const nlohmann::json config = read_json_object(path, kGenerationConfig);
  try {
    return defaults_of(config);
  } catch (const Error& error) {
    throw Error(kGenerationConfig, concat(path, ": ", error.message()));
  }
}

std::string notice_of_ignored(const std::vector<std::string>& ignored) {
  if (ignored.empty()) return "";
  return listed(ignored) + (ignored.size() > 1 ? " have" : " has") + " no effect here (generation_config.json)";
}

std::string description_of(const SamplingOptions& options) {
  const SamplingOptions off;
  std::string text = options.temperature == 0 ? "greedy" : concat("temperature ", options.temperature);
  const auto add = [&text](const char* name, const auto& value, const auto& unused) {
    if (value != unused) text += concat(", ", name, " ", value);
  };
  if (options.temperature != 0) {
    add("top_k", options.top_k, off.top_k);
    add("top_p", options.top_p, off.top_p);
    add("min_p", options.min_p, off.min_p);
  }
  add("repetition_penalty", options.repetition_penalty, off.repetition_penalty);
  add("presence_penalty", options.presence_penalty, off.presence_penalty);
  add("frequency_penalty", options.frequency_penalty, off.frequency_penalty);
  if (!options.logit_bias.empty()) text += concat(", logit_bias of ", options.logit_bias.size(), " tokens");
  if (options.temperature != 0) text += concat(", seed ", options.seed);
  return text;
}

}  // namespace colossal::infer
