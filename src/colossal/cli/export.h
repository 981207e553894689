#pragma once
#include <string>

#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal export --from FOLDER --to FOLDER`: a run or Hugging Face folder written as a Hugging Face folder
/// `models`: of the architectures that it knows; null: those that the library has.
int export_model(const Arguments& arguments, const models::Registry* models);

/// The files of the tokenizer `source` (a folder, a file, GGUF) into the folder `to`: what is written of a model is
/// complete only with them. A tokenizer of bytes has none.
void copy_tokenizer(const std::string& source, const std::string& to);

/// Checks that a command that reads `from` does not write to it. Errors (component `command`): both name the same file
/// or folder.
void require_another_path(const char* command, const std::string& from, const std::string& to);

}  // namespace colossal::cli
