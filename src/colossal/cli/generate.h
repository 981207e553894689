#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal generate --from FOLDER --prompt TEXT [--temperature ...] [--parallel.tensor=N]`
int generate(const Arguments& arguments);

}  // namespace colossal::cli
