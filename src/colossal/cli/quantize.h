#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal quantize`: quantizes weights to 8 or 4 bits. `program` has the models that a folder may name; null = the
/// built-in ones.
int quantize(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
