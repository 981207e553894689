// Config keys that differ from their defaults or between runs.
#pragma once
#include <string>
#include <vector>

namespace colossal::report {

/// A key with its value in each run.
struct ConfigKeyRow {
  std::string key;                  ///< dotted
  std::string default_value;        ///< as TOML; empty if there is no default, e.g. for a key of one model family
  std::vector<std::string> values;  ///< value in each config, as TOML; empty if the config lacks the key
  bool differs_from_default = false, differs_between_runs = false;
};

/// Returns the keys of all configs, ordered by name. Each config and `defaults` are TOML texts; a text that is not TOML
/// counts as one without keys. The key run.folder, which names the run, is left out. A run without a key is treated as
/// if it had the default. If there is no default either, it differs from a run with the key. A config without any key
/// counts as no run in the two comparisons.
std::vector<ConfigKeyRow> config_keys(const std::vector<std::string>& configs, const std::string& defaults);

}  // namespace colossal::report
