// Adds the step rule and the preparation of this layer to the objective alignment, because `run` does not know step
// rules.
//
//   const run::Program program = align::with_alignment(run::built_in());       // cli/whole_program.h
#pragma once
#include "colossal/run/program.h"

namespace colossal::align {

/// Returns the program with the step rule of the objective alignment (align/preference_rule.h) and its preparation
/// (align/precompute.h). A row that has a rule, or the table [alignment] of another program, stays as it is.
run::Program with_alignment(run::Program program);

}  // namespace colossal::align
