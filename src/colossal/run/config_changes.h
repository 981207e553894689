// The changes between the saved config of a run and the config with which it is resumed.
//
//   const std::string changes = run::changes_since(saved_toml, config, shape.own);   // "model.layers = 2 -> 3"
#pragma once
#include <string>

#include "colossal/run/config.h"

namespace colossal::run {

/// Returns the keys outside [run] whose values in `now` differ from those of the config that was saved as the text
/// `then`: "model.layers = 2 -> 3, ...". `own`: the keys of [model] of the architecture. A renamed key is no change.
/// Returns an empty string if nothing differs, or if `then` cannot be read.
std::string changes_since(const std::string& then, const Config& now, const models::OwnSizes& own);

}  // namespace colossal::run
