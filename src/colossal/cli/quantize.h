#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal quantize`: weights rounded to 8 or 4 bits. `program`: what a folder may hold; null: the library's own.
int quantize(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
