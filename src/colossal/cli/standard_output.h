// Standard output with errors: what cannot be written is reported and makes the exit status 1.
#pragma once
#include <optional>
#include <string_view>

#include "colossal/base/error.h"

namespace colossal::cli {

/// Opens /dev/null in place of each standard stream that the caller closed (`>&-`), so that no file that the program
/// opens gets the number of one and receives its text. Writing to such a stream is an error still.
void open_standard_streams();

/// Writes `text` and a line feed to standard output.
/// Errors ("output"): they cannot be written.
void put_line(std::string_view text);

/// Flushes standard output. Returns an Error ("output") if this write or an earlier one failed. A pipe whose reader has
/// left (`colossal train ... | head`) is no error: a command that must not go on then is ended by SIGPIPE.
std::optional<Error> flush_standard_output();

}  // namespace colossal::cli
