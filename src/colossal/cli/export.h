#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal export --from FOLDER --to FOLDER`: a run or Hugging Face folder written as a Hugging Face folder
int export_model(const Arguments& arguments);

}  // namespace colossal::cli
