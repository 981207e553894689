#include "colossal/report/config_keys.h"

#include <map>
#include <set>
#include <type_traits>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/number.h"

namespace colossal::report {
namespace {

using ConfigTexts = std::map<std::string, std::string>;

std::string toml_text(bool value) { return value ? "true" : "false"; }
std::string toml_text(int64_t value) { return std::to_string(value); }
std::string toml_text(double value) { return text_of(value, 12); }
std::string toml_text(const std::string& value) { return concat("\"", value, "\""); }
std::string toml_text(const ConfigValue::List& list) {
  const auto text = [](const auto& item) {
    return std::visit([](const auto& value) { return toml_text(value); }, item);
  };
  return concat("[", join(list, ", ", text), "]");
}

ConfigTexts texts_of(const std::string& toml) {
  ConfigTexts texts;
  try {
    const ConfigDocument document = ConfigDocument::parse(toml, "config.toml");
    for (const auto& [key, value] : document.values()) {
      std::visit(
          [&](const auto& content) {
            using Content = std::decay_t<decltype(content)>;
            if constexpr (std::is_same_v<Content, ConfigValue::Unsupported>) {
              texts[key] = content.what;
            } else if constexpr (!std::is_same_v<Content, ConfigValue::Table>) {
              texts[key] = toml_text(content);
            }
          },
          value.value);
    }
  } catch (const Error&) {
    texts.clear();  // read_run() reports the error
  }
  return texts;
}

std::string text_or(const ConfigTexts& texts, const std::string& key, const std::string& otherwise) {
  const auto at = texts.find(key);
  return at == texts.end() ? otherwise : at->second;
}

}  // namespace

std::vector<ConfigKeyRow> config_keys(const std::vector<std::string>& configs, const std::string& defaults) {
  const ConfigTexts usual = texts_of(defaults);
  std::vector<ConfigTexts> runs;
  std::set<std::string> keys;
  for (const std::string& config : configs) {
    runs.push_back(texts_of(config));
    for (const auto& [key, value] : runs.back()) keys.insert(key);
  }
  keys.erase("run.folder");
  std::vector<ConfigKeyRow> rows;
  for (const std::string& key : keys) {
    ConfigKeyRow row{.key = key, .default_value = text_or(usual, key, ""), .values = {}};
    std::set<std::string> in_force;
    for (const ConfigTexts& run : runs) {
      row.values.push_back(text_or(run, key, ""));
      if (run.empty()) continue;  // a missing config has no known differences
      in_force.insert(text_or(run, key, row.default_value));
    }
    row.differs_from_default = in_force != std::set<std::string>{row.default_value};
    row.differs_between_runs = in_force.size() > 1;
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace colossal::report
