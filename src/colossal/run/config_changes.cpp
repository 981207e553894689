#include "colossal/run/config_changes.h"

#include <exception>
#include <map>

#include "colossal/base/config.h"
#include "colossal/base/error.h"

namespace colossal::run {

std::string changes_since(const std::string& then, const Config& now, const models::OwnSizes& own) {
  Config saved;
  try {
    ConfigDocument::parse(then, "its config").read(saved);
  } catch (const std::exception&) {
    return "";  // saved by a version with other keys
  }
  models::use_present_names(saved.model, own);
  std::map<std::string, std::string> before;  // as a map, because architectures have different keys
  for (const KeyHelp& key : describe_config(saved)) before[key.key] = key.default_value;
  std::string changes;
  const auto see = [&](const std::string& key, const std::string& from, const std::string& to) {
    if (from == to || key.starts_with("run.")) return;
    const auto text = [](const std::string& toml) { return toml.empty() ? "nothing" : toml; };
    changes += concat(changes.empty() ? "" : ", ", key, " = ", text(from), " -> ", text(to));
  };
  for (const KeyHelp& key : describe_config(now)) {
    see(key.key, before[key.key], key.default_value);
    before.erase(key.key);
  }
  for (const auto& [key, value] : before) see(key, value, "");  // keys that no longer exist
  return changes;
}

}  // namespace colossal::run
