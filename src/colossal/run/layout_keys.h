// The keys of a config that a search over layouts chooses (predict/search.h), and their text.
//
//   run::Config fresh = run::without_layout(config, {"parallel.tensor"});      // all others have their defaults
//   std::fputs(run::layout_table(chosen, config).c_str(), stdout);             // TOML to paste
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "colossal/run/config.h"

namespace colossal::run {

/// Returns the keys that a search chooses, in the order of the config: "parallel.data", "parallel.expert.size", ...
/// The budgets of [memory] are not among them, because the user sets them; the search decides whether to use them.
const std::vector<std::string>& layout_keys();

/// Returns true if `key` is one of `keys` or is inside a table among them: "parallel.tensor.mode" in "parallel.tensor".
bool is_among(const std::string& key, const std::vector<std::string>& keys);

/// Returns the layout keys whose values in `config` differ from their defaults, with these values as TOML.
std::vector<std::pair<std::string, std::string>> chosen_values(const Config& config);

/// Returns `config` with the default of each layout key that is not among `keep`. parallel.auto is false and
/// parallel.ranks is 0 in it, and memory.activations is 0 unless memory.recompute = "auto" is kept.
/// Errors ("plan"): an element of `keep` that is neither a layout key nor a table of some; the message names the
///                  nearest.
Config without_layout(const Config& config, const std::vector<std::string>& keep);

/// Returns the layout of `chosen` as TOML: the keys that are not at their default, those that differ from `given`, and
/// always parallel.data. With a different use of the budgets of [memory] also these.
std::string layout_table(const Config& chosen, const Config& given);

/// Returns the layout keys and budgets whose values differ from those of `given`, as TOML. Empty if none differs.
std::string layout_changes(const Config& chosen, const Config& given);

/// Returns the keys of [parallel], [memory] and [training] whose values differ from those of `given`, with their values
/// as TOML, in alphabetical order.
std::vector<std::pair<std::string, std::string>> changed_values(const Config& changed, const Config& given);

/// Checks parallel.auto and parallel.ranks. Called by Config::validate(). Errors ("parallel"): `auto` beside a layout
/// key that is not at its default, with the key to remove; without `auto`, `ranks` that differ from the product of the
/// axes.
void check_auto(const Config& config);

}  // namespace colossal::run
