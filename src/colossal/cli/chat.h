#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::models {
class Registry;
}

namespace colossal::cli {

/// `colossal chat`: a conversation in the terminal with a model of a folder or file that has a chat template. `models`:
/// null for the built-in ones.
int chat(const Arguments& arguments, const models::Registry* models);

}  // namespace colossal::cli
