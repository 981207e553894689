#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal embed`: computes a vector for each text. `program` has the models that a folder may name; null = the
/// built-in ones.
int embed(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
