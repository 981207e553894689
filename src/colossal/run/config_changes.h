// What became of the config of a run that goes on.
//
//   const std::string changes = run::changes_since(saved_toml, config);   // "model.layers = 2 -> 3"
#pragma once
#include <string>

#include "colossal/run/config.h"

namespace colossal::run {

/// "model.layers = 2 -> 3, ...": how `now` differs from the config that was saved as the text `then`, but for [run];
/// empty where nothing does, or where nobody can tell.
std::string changes_since(const std::string& then, const Config& now);

}  // namespace colossal::run
