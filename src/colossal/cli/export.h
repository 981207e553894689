#pragma once
#include <string>

#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal export --from FOLDER --to FOLDER`: writes a run or Hugging Face folder as a Hugging Face folder. `program`
/// has the models and objectives that the folder read may name; null = the built-in ones.
int export_model(const Arguments& arguments, const run::Program* program);

/// Checks that a command that reads `from` does not write to it. Errors (component `command`): both name the same file
/// or folder.
void require_another_path(const char* command, const std::string& from, const std::string& to);

}  // namespace colossal::cli
