// The objective of a run folder whose model draws pictures.
//
//   const auto objective = objective_of_run("runs/dit-shapes", program, "draw");
//   objective->class_names();
#pragma once
#include <memory>
#include <string>

#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/program.h"

namespace colossal::diffusion {

/// Returns the objective of the run in `folder`, as its config has it. It reads no weights. Errors (`component`): no
/// run folder; a run whose model does not draw pictures. Errors of run::resolve_model().
std::shared_ptr<const run::DiffusionObjective> objective_of_run(const std::string& folder, const run::Program& program,
                                                                const char* component);

}  // namespace colossal::diffusion
