#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal info`: prints LibTorch, processor, memory, devices, and measured peaks. Cost: about two seconds of
/// measuring.
int info(const Arguments& arguments);

}  // namespace colossal::cli
