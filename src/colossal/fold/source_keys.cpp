#include "colossal/fold/source_keys.h"

#include "colossal/run/data.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/folding/folding_objective.h"
#include "colossal/run/stored_config.h"

namespace colossal::fold {

SourceKeys keys_of_source(const std::string& from, const run::Program& program) {
  if (!run::is_run(from)) return {};
  const run::ResolvedModel model = run::resolve_model(run::stored_config(from), program);
  const auto* objective = dynamic_cast<const run::FoldingObjective*>(model.objective.objective.get());
  if (objective == nullptr) return {};
  const run::FoldingKeys& keys = objective->keys();
  return {.rows = {.clusters = keys.clusters, .extra = keys.extra, .masked = keys.masked}, .passes = keys.passes};
}

}  // namespace colossal::fold
