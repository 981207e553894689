#pragma once
#include <string>

#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal export --from FOLDER --to FOLDER`: a run or Hugging Face folder written as a Hugging Face folder
/// `program`: the models and objectives that it knows; null: those of the library.
int export_model(const Arguments& arguments, const run::Program* program);

/// The files of the tokenizer `source` (a folder, a file, GGUF) into the folder `to`: what is written of a model is
/// complete only with them. A tokenizer of bytes has none.
void copy_tokenizer(const std::string& source, const std::string& to);

/// Checks that a command that reads `from` does not write to it. Errors (component `command`): both name the same file
/// or folder.
void require_another_path(const char* command, const std::string& from, const std::string& to);

}  // namespace colossal::cli
