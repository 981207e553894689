// The keys of run configs that differ from their defaults, and those that differ between runs.
#pragma once
#include <string>
#include <vector>

namespace colossal::report {

struct ConfigKeyRow {
  std::string key;                  ///< dotted
  std::string default_value;        ///< as TOML; empty if the key has none, as those of one model family
  std::vector<std::string> values;  ///< of each config, as TOML; empty if it lacks the key
  bool differs_from_default = false, differs_between_runs = false;
};

/// The keys of all configs and of `defaults`, each a text in TOML, ordered by name. A text that is not TOML counts as
/// one without keys. The key run.folder, which names the run, is left out. A run that lacks a key which another run has
/// differs from it only if `defaults` lacks the key too, or the other run has another value than the default.
std::vector<ConfigKeyRow> config_keys(const std::vector<std::string>& configs, const std::string& defaults);

}  // namespace colossal::report
