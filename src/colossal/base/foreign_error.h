// Exceptions of other libraries, converted to Error.
#pragma once
#include <exception>

#include "colossal/base/error.h"

namespace colossal {

/// Returns `error` as an Error:
///   an Error                                        itself
///   out of memory, of C++ or of LibTorch            [memory], with a remedy
///   an error of std::filesystem                     [file], with path and reason
///   a JSON error about bytes that are not UTF-8     [json], with a remedy
///   any other, which is an exception of LibTorch    [libtorch] and its first line, without LibTorch's own stack
Error as_error(const std::exception& error);

}  // namespace colossal
