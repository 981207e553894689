#pragma once

namespace colossal {

/// Makes the process print the message of an Error that nothing catches and exit with status 1. Without this call such
/// an Error aborts the process. Other exceptions abort as before. Calling it again changes nothing.
/// Thread safety: any thread may call it.
void exit_on_uncaught_error();

}  // namespace colossal
