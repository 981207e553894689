#include "colossal/run/layout_keys.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"

namespace colossal::run {
namespace {

/// Budgets of [memory] and the keys that need one. A layout without tiers has none of them, and one without
/// memory.recompute = "auto" has no memory.activations.
const std::vector<std::string>& budget_keys() {
  static const std::vector<std::string> keys{"memory.device", "memory.states_on_device", "memory.host", "memory.disk",
                                             "memory.activations"};
  return keys;
}

/// Returns the value of every key of [parallel], [memory] and [training] as TOML.
std::map<std::string, std::string> layout_values(const Config& config) {
  Config copy = config;
  std::map<std::string, std::string> values;
  for (const KeyHelp& key : describe_fields([&](Fields& f) {
         f.section("parallel", copy.parallel, "");
         f.section("memory", copy.memory, "");
         f.section("training", copy.training, "");
       }))
    values[key.key] = key.default_value;
  return values;
}

const std::map<std::string, std::string>& default_values() {
  static const std::map<std::string, std::string> values = layout_values(Config());
  return values;
}

/// Reads values, by key, into `config`.
void set_values(Config& config, const std::map<std::string, std::string>& values) {
  std::string toml;
  for (const auto& [key, value] : values) toml += concat(key, " = ", value, "\n");
  ConfigDocument::parse(toml, "the layout").read(config);
}

/// Returns the values of `keys` as TOML, in the tables of a config.
std::string table_of(const std::vector<std::string>& keys, const std::map<std::string, std::string>& values) {
  std::string toml;
  for (const char* section : {"parallel", "memory", "training"}) {
    std::string lines;
    for (const std::string& key : keys)
      if (is_among(key, {section})) lines += concat(key.substr(key.find('.') + 1), " = ", values.at(key), "\n");
    if (!lines.empty()) toml += concat(toml.empty() ? "" : "\n", "[", section, "]\n", lines);
  }
  return toml;
}

void check_kept_keys(const std::vector<std::string>& keep) {
  std::vector<std::string> known;
  for (const std::string& key : layout_keys()) {
    for (size_t end = key.find('.', key.find('.') + 1); end != std::string::npos; end = key.find('.', end + 1))
      known.push_back(key.substr(0, end));
    known.push_back(key);
  }
  for (const std::string& key : keep)
    require(std::find(known.begin(), known.end(), key) != known.end(), "plan",
            "only keys that the search chooses can be kept: got `", printable(key), "`", did_you_mean(key, known),
            "; all other keys stay as they are anyway");
}

}  // namespace

const std::vector<std::string>& layout_keys() {
  static const std::vector<std::string> keys{
      "parallel.data",
      "parallel.expert.size",
      "parallel.expert.tensor",
      "parallel.expert.node",
      "parallel.sequence.size",
      "parallel.sequence.mode",
      "parallel.sequence.ulysses",
      "parallel.sequence.node",
      "parallel.tensor.size",
      "parallel.tensor.mode",
      "parallel.tensor.depth",
      "parallel.tensor.keep_gathered",
      "parallel.tensor.sequence",
      "parallel.pipeline.size",
      "parallel.pipeline.schedule",
      "parallel.pipeline.micro_batches",
      "parallel.pipeline.chunks",
      "parallel.pipeline.layers_per_stage",
      "parallel.zero",
      "parallel.zero_group",
      "parallel.reshard_after_forward",
      "parallel.max_gathered_mib",
      "memory.recompute",
      "training.accumulate",
  };
  return keys;
}

bool is_among(const std::string& key, const std::vector<std::string>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& one) {
    return key == one || (key.starts_with(one) && key[one.size()] == '.');
  });
}

std::vector<std::pair<std::string, std::string>> chosen_values(const Config& config) {
  const auto values = layout_values(config);
  std::vector<std::pair<std::string, std::string>> chosen;
  for (const std::string& key : layout_keys())
    if (values.at(key) != default_values().at(key)) chosen.emplace_back(key, values.at(key));
  return chosen;
}

Config without_layout(const Config& config, const std::vector<std::string>& keep) {
  check_kept_keys(keep);
  std::map<std::string, std::string> fresh;
  for (const std::string& key : layout_keys())
    if (!is_among(key, keep)) fresh[key] = default_values().at(key);
  Config result = config;
  set_values(result, fresh);
  if (result.memory.recompute != "auto") result.memory.activations = 0;
  result.parallel.automatic = false;
  result.parallel.ranks_wanted = 0;
  return result;
}

std::string layout_table(const Config& chosen, const Config& given) {
  const auto values = layout_values(chosen), before = layout_values(given);
  std::vector<std::string> keys;
  for (const std::string& key : layout_keys())
    if (key == "parallel.data" || values.at(key) != default_values().at(key) || values.at(key) != before.at(key))
      keys.push_back(key);
  for (const std::string& key : budget_keys())
    if (values.at(key) != before.at(key)) keys.push_back(key);
  return table_of(keys, values);
}

std::string layout_changes(const Config& chosen, const Config& given) {
  const auto values = layout_values(chosen), before = layout_values(given);
  std::vector<std::string> keys;
  for (const auto* list : {&layout_keys(), &budget_keys()})
    for (const std::string& key : *list)
      if (values.at(key) != before.at(key)) keys.push_back(key);
  return table_of(keys, values);
}

std::vector<std::pair<std::string, std::string>> changed_values(const Config& changed, const Config& given) {
  const auto values = layout_values(changed), before = layout_values(given);
  std::vector<std::pair<std::string, std::string>> differing;
  std::set_difference(values.begin(), values.end(), before.begin(), before.end(), std::back_inserter(differing));
  return differing;
}

void check_auto(const Config& config) {
  const auto& parallel = config.parallel;
  if (!parallel.automatic) {
    require(parallel.ranks_wanted == 0 || parallel.ranks_wanted == parallel.ranks(), "parallel",
            "ranks must be the product of all axes: got ranks = ", parallel.ranks_wanted, ", but the axes make ",
            parallel.ranks(), "; leave ranks out, change an axis, or set auto = true to have the axes chosen");
    return;
  }
  const auto chosen = chosen_values(config);
  const std::string keys = join(chosen, ", ", [](const auto& one) { return concat(one.first, " = ", one.second); });
  require(chosen.empty(), "parallel", "auto chooses the layout, so no key of it can be set: got auto = true beside ",
          keys, "; remove ", chosen.size() > 1 ? "these keys" : "this key", ", or set auto = false");
}

}  // namespace colossal::run
