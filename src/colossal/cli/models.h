// `colossal models`: lists the architectures that [model] may name.
#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// Prints each architecture with its presets and its own keys. `program` has the models and objectives; null = the
/// built-in ones.
int list_models(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
