// The flag --adapter [NAME=]FOLDER[:SCALE] of commands that load a model: adapters that are put onto it.
//
//   run::parse_adapter("poet=adapters/poet:0.5");     // {.name = "poet", .folder = "adapters/poet", .scale = 0.5}
//   run::parse_adapter("runs/lora");                  // {.name = "lora", .folder = "runs/lora"}
#pragma once
#include <string>

namespace colossal::run {

/// A folder of peft, or a run with adapters.
struct AdapterChoice {
  std::string name{};    ///< by which requests choose it; default: the last name of the path
  std::string folder{};  ///< folder of peft, or run folder
  double scale = 1;      ///< factor of s B A, in addition to the folder's own s
};

/// Reads [NAME=]FOLDER[:SCALE]. If the whole text is the path of a folder, it is that folder. A scale is what follows
/// the last colon, if it is a number; a path with `=` before its first `/` needs a name before it.
/// Errors ("adapter"): no folder, an empty name, or a scale that is not finite.
AdapterChoice parse_adapter(const std::string& text);

}  // namespace colossal::run
