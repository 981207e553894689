// The flag --adapter [NAME=]FOLDER[:SCALE] of commands that load a model: adapters that are put onto it.
//
//   run::parse_adapter("poet=adapters/poet:0.5");     // {.name = "poet", .folder = "adapters/poet", .scale = 0.5}
//   run::parse_adapter("runs/lora");                  // {.name = "lora", .folder = "runs/lora"}
//   run::parse_adapters({"poet=adapters/poet", "runs/lora"}, "Qwen2.5-0.5B");     // two names
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::run {

/// A folder of peft, or a run with adapters.
struct AdapterChoice {
  std::string name{};     ///< by which requests choose it; default: the last name of the path
  std::string folder{};   ///< folder of peft, or run folder
  double scale = 1;       ///< factor of s B A, in addition to the folder's own s
  bool has_name = false;  ///< the text has NAME=
  /// Number of the text encoder of a pipeline, from 0, whose adapters are meant (text_adapters_of()); -1 = the first
  int64_t text_encoder = -1;
};

/// Reads [NAME=]FOLDER[:SCALE]. If the whole text is the path of a folder, it is that folder. A scale is what follows
/// the last colon, if it is a number; a path with `=` before its first `/` needs a name before it.
/// Errors ("adapter"): no folder, an empty name, or a scale that is not finite.
AdapterChoice parse_adapter(const std::string& text);

/// Reads the adapters of a server, which requests choose by their names. `base` is the name of the model itself.
/// Errors ("adapter"): errors of parse_adapter(); a name that occurs twice, is `base`, or has other characters than
///                     letters, digits and -_.:@+ of ASCII.
std::vector<AdapterChoice> parse_adapters(const std::vector<std::string>& texts, const std::string& base);

}  // namespace colossal::run
