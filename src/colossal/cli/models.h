// colossal models: what [model] may name.
#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// Prints each architecture with its presets and its own keys.
/// `program`: the models and objectives that it knows; null: those of the library.
int list_models(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
