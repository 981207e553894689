#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal generate --from FOLDER --prompt TEXT [--temperature ...] [--parallel.tensor=N]`: generates text. `program`
/// has the models and objectives that a folder may name; null = the built-in ones.
int generate(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
