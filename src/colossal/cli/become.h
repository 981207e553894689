#pragma once
#include <string>

#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// Goes on as `colossal-torch command arguments...`, in this process: the program that lies beside this one, or where
/// an installation has it, in ../libexec/colossal. Waiting threads hardly spin there (GOMP_SPINCOUNT), and streams of a
/// GPU share no queue up to 32 of them (CUDA_DEVICE_MAX_CONNECTIONS), unless the environment says otherwise.
/// Errors ("program"): it is not there, or cannot be started.
[[noreturn]] void become_torch(const std::string& command, const Arguments& arguments);

}  // namespace colossal::cli
