// The changes between the saved config of a run and the config with which it is resumed.
//
//   const std::string changes = run::changes_since(saved_toml, config);   // "model.layers = 2 -> 3"
#pragma once
#include <string>

#include "colossal/run/config.h"

namespace colossal::run {

/// Returns the differences, "model.layers = 2 -> 3, ...", between `now` and the config saved as the text `then`, except
/// those in [run]. Empty if there are none, or if `then` cannot be read.
std::string changes_since(const std::string& then, const Config& now);

}  // namespace colossal::run
