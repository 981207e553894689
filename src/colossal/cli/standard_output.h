// Writes to standard output with error checks: a failed write is reported and makes the exit status 1.
#pragma once
#include <optional>
#include <string_view>

#include "colossal/base/error.h"

namespace colossal::cli {

/// Opens /dev/null in place of each standard stream that the caller closed (`>&-`). Otherwise a file that the program
/// opens could get that descriptor and receive the stream's text. Writes to such a stream still fail.
void open_standard_streams();

/// Writes `text` and a line feed to standard output. Errors ("output"): a failed write.
void put_line(std::string_view text);

/// Flushes standard output. Returns an Error ("output") if this write or an earlier one failed. A pipe whose reader has
/// closed it (`colossal train ... | head`) is not an error: SIGPIPE ends a command that must stop then.
std::optional<Error> flush_standard_output();

}  // namespace colossal::cli
