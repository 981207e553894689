#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal export --from FOLDER --to FOLDER`: a run or Hugging Face folder written as a Hugging Face folder
/// `models`: of the architectures that it knows; null: those that the library has.
int export_model(const Arguments& arguments, const models::Registry* models);

}  // namespace colossal::cli
