#include "colossal/diffusion/run_objective.h"

#include "colossal/base/error.h"
#include "colossal/run/data.h"
#include "colossal/run/stored_config.h"

namespace colossal::diffusion {

std::shared_ptr<const run::DiffusionObjective> objective_of_run(const std::string& folder, const run::Program& program,
                                                                const char* component) {
  require(run::is_run(folder), component, "--from must be the folder of a run with [diffusion]: got ", folder,
          ", which has no config.toml");
  const run::ResolvedModel model = run::resolve_model(run::stored_config(folder), program);
  auto objective = std::dynamic_pointer_cast<const run::DiffusionObjective>(model.objective.objective);
  require(objective != nullptr, component, "the model of the run must draw pictures: got one that ",
          model.shape.task().purpose(), " in ", folder, "; use the commands for such models");
  return objective;
}

}  // namespace colossal::diffusion
