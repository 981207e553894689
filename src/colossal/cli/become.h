#pragma once
#include <string>

#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// Replaces this program by `colossal-torch command arguments...` in the same process. That program is in the same
/// folder as this one, or in ../libexec/colossal of an installation. Sets two variables of the environment, unless they
/// are set. GOMP_SPINCOUNT: waiting threads hardly spin; not set if OMP_WAIT_POLICY is. CUDA_DEVICE_MAX_CONNECTIONS: up
/// to 32 streams of a GPU do not share a queue.
/// Errors ("program"): the program is missing or cannot be started.
[[noreturn]] void become_torch(const std::string& command, const Arguments& arguments);

}  // namespace colossal::cli
