// Adds the step rule of this layer to the objective folding, because `run` does not know step rules.
//
//   const run::Program program = fold::with_folding(run::built_in());       // cli/whole_program.h
#pragma once
#include "colossal/run/program.h"

namespace colossal::fold {

/// Returns the program whose runs with [folding] recycle (fold/recycling_rule.h). A row that has a rule, or the table
/// of another program, stays as it is.
run::Program with_folding(run::Program program);

}  // namespace colossal::fold
