#pragma once

namespace colossal {

/// Makes the process print the message of an uncaught Error and exit with status 1. If a program does not call it, an
/// uncaught Error aborts the process. Other exceptions still abort the process. A second call has no effect.
/// Thread safety: any thread may call it.
void exit_on_uncaught_error();

}  // namespace colossal
