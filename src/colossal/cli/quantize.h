#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal quantize`: weights rounded to 8 or 4 bits. `models`: what a folder may hold; null: the library's own.
int quantize(const Arguments& arguments, const models::Registry* models);

}  // namespace colossal::cli
