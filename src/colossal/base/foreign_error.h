// Exceptions of libraries in the project's own words.
#pragma once
#include <exception>

#include "colossal/base/error.h"

namespace colossal {

/// `error` as an Error. One of ours: itself. A lack of memory, LibTorch's too: [memory], with what to change. One of
/// std::filesystem: [file], with path and reason. Any other is LibTorch's: [libtorch] and its first line; the rest is
/// its own stack.
Error as_error(const std::exception& error);

}  // namespace colossal
