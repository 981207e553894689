// Exceptions of other libraries, converted to Error, and errors that nothing catches.
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

/// Makes the process print the message of an uncaught Error and exit with status 1. If a program does not call it, an
/// uncaught Error aborts the process. Other exceptions still abort the process. A second call has no effect.
/// Thread safety: any thread may call it.
void exit_on_uncaught_error();

}  // namespace colossal
