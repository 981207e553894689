#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal generate --from FOLDER --prompt TEXT [--temperature ...] [--parallel.tensor=N]`
/// `program`: the models and objectives that it knows; null: those of the library.
int generate(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
