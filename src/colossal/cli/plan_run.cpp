#include "colossal/cli/plan_run.h"

#include <cstdio>
#include <string>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/progress.h"
#include "colossal/cli/plan_check.h"
#include "colossal/cli/plan_search.h"
#include "colossal/cli/planned_run.h"
#include "colossal/plan/prediction.h"
#include "colossal/predict/page.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"

namespace colossal::cli {

int plan_run(const PlanWishes& wishes, const run::Program* program) {
  if (wants_search(wishes)) {
    if (wishes.check || !wishes.report.empty())
      throw UsageError(
          "colossal plan: --check and --report need one layout, and this run searches for it; run them with the table "
          "that the search prints");
    return plan_search(wishes, program);
  }
  if (wishes.check) return plan_check(wishes, program);
  const PlannedRun run = resolve_plan(wishes, program);
  const plan::Cluster cluster = predict::cluster_of(run.config, run.profile);
  Progress progress("planning", 0, stderr, style_on_terminals(stderr));
  const predict::RecordedRoles roles = predict::record_roles(
      run.config, run.models, cluster,
      [&](int64_t done, int64_t all) { progress.update(done, concat("of ", all, " ranks recorded")); });
  plan::Prediction prediction = predict::predict_step(run.config, run.models, roles, cluster);
  if (!prediction.fits)
    prediction.remedies = predict::remedies(run.config, run.models, cluster, [&](int64_t recorded) {
      progress.update(recorded, "changes tried, because the layout does not fit");
    });
  progress.finish();
  predict::add_models(prediction, run.config, run.models);
  add_notes(run, prediction);
  if (!wishes.report.empty())
    write_file(wishes.report, predict::prediction_page(wishes.config, run.config, roles, prediction, cluster));
  std::fputs((wishes.json ? plan::to_json(prediction) + "\n" : plan::to_text(prediction)).c_str(), stdout);
  return 0;
}

}  // namespace colossal::cli
