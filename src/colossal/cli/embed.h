#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal embed`: a vector for each text. `program`: what a folder may hold; null: the library's own.
int embed(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
