#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal train CONFIG [--resume | --overwrite] [--section.key=value ...]`
/// `models`: of the architectures that it knows; null: those that the library has.
int train(const Arguments& arguments, const models::Registry* models);

}  // namespace colossal::cli
