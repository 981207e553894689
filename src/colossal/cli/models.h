// colossal models: what [model] may name.
#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// Prints each architecture with its presets and its own keys.
/// `models`: of the architectures that it knows; null: those that the library has.
int list_models(const Arguments& arguments, const models::Registry* models);

}  // namespace colossal::cli
