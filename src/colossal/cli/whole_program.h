// The program of commands that train or plan a run: what `run` knows, and what layers above it add to its rows.
//
//   const run::Program known = whole_program(program);
#pragma once
#include "colossal/run/program.h"

namespace colossal::cli {

/// Returns `program`, or run::built_in() if it is null, with the step rules and preparations of the library's
/// objectives (align::with_alignment).
run::Program whole_program(const run::Program* program);

}  // namespace colossal::cli
