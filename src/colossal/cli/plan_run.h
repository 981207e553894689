// The form of `colossal plan` that works on the config of a run.
#pragma once
#include "colossal/cli/plan_wishes.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal plan CONFIG`: predicts a step of the run and prints it. Returns the exit status: 0 whether the run fits or
/// not. Errors: those of resolve_plan() (cli/planned_run.h) and predict::predict_step().
int plan_run(const PlanWishes& wishes, const run::Program* program);

}  // namespace colossal::cli
