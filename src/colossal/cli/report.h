// `colossal report`: one page that shows one or several training runs.
#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// Writes the page for the run folders that the arguments name. Errors: errors of report::read_run(); the page cannot
/// be written.
int report(const Arguments& arguments);

}  // namespace colossal::cli
