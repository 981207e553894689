#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal embed`: a vector for each text. `models`: what a folder may hold; null: the library's own.
int embed(const Arguments& arguments, const models::Registry* models);

}  // namespace colossal::cli
