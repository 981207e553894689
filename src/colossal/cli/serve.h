#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal serve`: serves a model over HTTP until a stop signal. `program` has the models that the folder or file may
/// name; null = the built-in ones.
int serve(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
