#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal train CONFIG [--resume | --overwrite] [--section.key=value ...]`
int train(const Arguments& arguments);

}  // namespace colossal::cli
