#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal chat`: runs a conversation in the terminal with a model of a folder or file that has a chat template.
/// `program` has the models that the folder or file may name; null = the built-in ones.
int chat(const Arguments& arguments, const run::Program* program);

}  // namespace colossal::cli
