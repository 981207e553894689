#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal generate --from FOLDER --prompt TEXT [--temperature ...] [--parallel.tensor=N]`
/// `models`: of the architectures that it knows; null: those that the library has.
int generate(const Arguments& arguments, const models::Registry* models);

}  // namespace colossal::cli
